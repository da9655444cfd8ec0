"""Atomic steps of a Redis: scripts in Lua for version 7 or newer, and the digests that call them.

Keys and arguments of each are named at its top.
"""

# Times come from the clock of the server, as those of replicas differ. A number that is no integer is
# returned as text, since Redis cuts it.

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    source: str
    digest: str


# The digest is how the server names a script that it has seen, so that calls need not send its text.
def _script(source: str) -> Script:
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


RENEW: Final = _script("""
local replicas, cards, ended = KEYS[1], KEYS[2], KEYS[3]
local id, card, lease, joining, memory = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', replicas, '-inf', now)) do
  redis.call('ZREM', replicas, gone)
  redis.call('HDEL', cards, gone)
  redis.call('ZADD', ended, now, gone)
end
redis.call('ZREMRANGEBYSCORE', ended, '-inf', now - memory)
redis.call('PEXPIRE', ended, memory)
if not redis.call('ZSCORE', replicas, id) and (joining == '0' or redis.call('ZSCORE', ended, id)) then
  redis.call('ZADD', ended, now, id)
  redis.call('PEXPIRE', ended, memory)
  return false
end
redis.call('ZADD', replicas, now + lease, id)
redis.call('HSET', cards, id, card)
redis.call('PEXPIRE', replicas, memory + lease)
redis.call('PEXPIRE', cards, memory + lease)
local members = {}
for _, member in ipairs(redis.call('ZRANGE', replicas, 0, -1)) do
  table.insert(members, member)
  table.insert(members, redis.call('HGET', cards, member) or '')
end
return members
""")
"""None, or the ids and cards of all members, in turns."""

MEMBERS: Final = _script("""
local replicas, cards = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {now}
local members = redis.call('ZRANGEBYSCORE', replicas, '(' .. now, '+inf', 'WITHSCORES')
for i = 1, #members, 2 do
  table.insert(found, members[i])
  table.insert(found, redis.call('HGET', cards, members[i]) or '')
  table.insert(found, members[i + 1] - now)
end
return found
""")
"""The time in milliseconds, then ids, cards and milliseconds that are left of all members, in turns."""

LEAVE: Final = _script("""
local replicas, cards, ended = KEYS[1], KEYS[2], KEYS[3]
local id, memory = ARGV[1], ARGV[2]
local time = redis.call('TIME')
redis.call('ZREM', replicas, id)
redis.call('HDEL', cards, id)
redis.call('ZADD', ended, time[1] * 1000 + math.floor(time[2] / 1000), id)
redis.call('PEXPIRE', ended, memory)
""")

SAVE: Final = _script("""
local session = KEYS[1]
local owner, facts, expiry = ARGV[1], ARGV[2], ARGV[3]
local before = redis.call('HGET', session, 'owner')
if before and before ~= owner then
  return 0
end
redis.call('HSET', session, 'owner', owner, 'facts', facts)
redis.call('PEXPIRE', session, expiry)
return 1
""")

CLAIM: Final = _script("""
local session = KEYS[1]
local owner, before = ARGV[1], ARGV[2]
if redis.call('HGET', session, 'owner') ~= before then
  return 0
end
redis.call('HSET', session, 'owner', owner)
return 1
""")

KEEP: Final = _script("""
local owner, expiry = ARGV[1], ARGV[2]
local kept = {}
for i = 1, #KEYS, 2 do
  local session, events = KEYS[i], KEYS[i + 1]
  local owned = redis.call('HGET', session, 'owner') == owner
  if owned then
    redis.call('PEXPIRE', session, expiry)
    redis.call('PEXPIRE', events, expiry)
  end
  table.insert(kept, owned and 1 or 0)
end
return kept
""")
"""For each session (two keys) 1 if it is kept, else 0."""

END: Final = _script("""
local session, events = KEYS[1], KEYS[2]
local owner = ARGV[1]
if redis.call('HGET', session, 'owner') == owner then
  redis.call('DEL', session, events)
end
""")

APPEND: Final = _script("""
local events = KEYS[1]
local most, expiry = ARGV[1], ARGV[2]
for i = 3, #ARGV do
  redis.call('XADD', events, 'MAXLEN', most, '*', 'event', ARGV[i])
end
redis.call('PEXPIRE', events, expiry)
""")

TAKE: Final = _script("""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local full_at, number = {}, nil
local longest = 0.000001  -- the clock's resolution: less than that is an error of the sum
for i, bucket in ipairs(KEYS) do
  local full = tonumber(redis.call('GET', bucket) or now) or now
  local latest = now + ARGV[2 * i - 1] + ARGV[2 * i]
  if not (full <= latest) then  -- of a store whose clock was ahead, or no number: an empty bucket
    full = latest
  end
  full_at[i] = math.max(full, now)
  local wait = full_at[i] - now - ARGV[2 * i]
  if wait > longest then
    number, longest = i - 1, wait
  end
end
if number then
  return {number, string.format('%.17g', longest)}
end
for i, bucket in ipairs(KEYS) do
  local full = full_at[i] + ARGV[2 * i - 1]
  redis.call('SET', bucket, string.format('%.17g', full), 'PX', math.ceil((full - now) * 1000))
end
return false
""")
"""Arguments: interval and room of each bucket. None, or the number of the bucket and the wait in seconds."""

TAKE_PLACE: Final = _script("""
local taken, replicas = KEYS[1], KEYS[2]
local place, most, expiry = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', taken, '-inf', now)
if redis.call('ZCARD', taken) >= most and not redis.call('ZSCORE', taken, place) then
  local living = {}
  for _, each in ipairs(redis.call('ZRANGE', taken, 0, -1)) do
    local owner = string.byte(each) ~= 32 and string.match(each, '^[^ ]*')
    if owner and living[owner] == nil then
      living[owner] = tonumber(redis.call('ZSCORE', replicas, owner) or 0) > now
    end
    if owner and not living[owner] then
      redis.call('ZREM', taken, each)
    end
  end
  if redis.call('ZCARD', taken) >= most then
    return 0
  end
end
redis.call('ZADD', taken, now + expiry, place)
redis.call('PEXPIREAT', taken, redis.call('ZRANGE', taken, -1, -1, 'WITHSCORES')[2])
return 1
""")
"""A place is text: the id of its owner, a blank, its name. Owners whose lease has ended lose theirs first."""

KEEP_PLACES: Final = _script("""
local expiry = ARGV[#ARGV]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local groups = {}
for i, taken in ipairs(KEYS) do
  redis.call('ZADD', taken, now + expiry, ARGV[i])
  groups[taken] = true
end
for taken in pairs(groups) do
  redis.call('PEXPIREAT', taken, redis.call('ZRANGE', taken, -1, -1, 'WITHSCORES')[2])
end
""")
"""A key and an argument for each place."""

LEAVE_PLACES: Final = _script("""
for i, taken in ipairs(KEYS) do
  redis.call('ZREM', taken, ARGV[i])
end
""")
"""A key and an argument for each place."""

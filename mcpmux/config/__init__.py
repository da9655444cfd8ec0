"""The configuration: read from files into frozen values before the event loop starts."""

from __future__ import annotations

from mcpmux.config.argument import parse_upstream_argument as parse_upstream_argument
from mcpmux.config.auth import AccessRule as AccessRule
from mcpmux.config.auth import Auth as Auth
from mcpmux.config.auth import Issuer as Issuer
from mcpmux.config.auth import OAuth as OAuth
from mcpmux.config.auth import StaticToken as StaticToken
from mcpmux.config.expansion import Secret as Secret
from mcpmux.config.expansion import display_url as display_url
from mcpmux.config.intercept import Intercept as Intercept
from mcpmux.config.listener import Admin as Admin
from mcpmux.config.listener import AnyListener as AnyListener
from mcpmux.config.listener import ClientTls as ClientTls
from mcpmux.config.listener import HttpListener as HttpListener
from mcpmux.config.listener import Listeners as Listeners
from mcpmux.config.listener import ServerTls as ServerTls
from mcpmux.config.listener import TcpListener as TcpListener
from mcpmux.config.listener import UnixListener as UnixListener
from mcpmux.config.listener import WebSocketListener as WebSocketListener
from mcpmux.config.model import TOOL_SECONDS as TOOL_SECONDS
from mcpmux.config.model import Caching as Caching
from mcpmux.config.model import Config as Config
from mcpmux.config.model import Http as Http
from mcpmux.config.model import Identity as Identity
from mcpmux.config.model import Limits as Limits
from mcpmux.config.model import Logging as Logging
from mcpmux.config.model import Merging as Merging
from mcpmux.config.model import Missing as Missing
from mcpmux.config.model import Stdio as Stdio
from mcpmux.config.model import Target as Target
from mcpmux.config.model import Tcp as Tcp
from mcpmux.config.model import Unix as Unix
from mcpmux.config.model import Upstream as Upstream
from mcpmux.config.model import WebSocket as WebSocket
from mcpmux.config.traffic import Audit as Audit
from mcpmux.config.traffic import Capture as Capture
from mcpmux.config.traffic import CaptureRule as CaptureRule
from mcpmux.config.traffic import Redaction as Redaction
from mcpmux.config.traffic import Tracing as Tracing

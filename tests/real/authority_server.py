"""An OAuth authorization server made of Authlib and Flask. Run by a Python that has them; prints its issuer.

Codes with PKCE, refresh tokens for one use, client credentials, dynamic registration, metadata, JWTs after
RFC 9068; everybody is the user `alice`, who agrees. The audience of a token is the `resource` that it was
asked for (RFC 8707). Clients may have a secret, or a key (`private_key_jwt`).

It is an identity provider, too, which gives ID tokens, and exchanges them for assertions (RFC 8693), and it
takes the assertions of any other that runs here for tokens (RFC 7523).

    POST /rotate        a new key; the old one is not published any more
    POST /next {…}      what tokens say from now on in place of what they should: claims, and "alg": "none";
                        "lifetime": of tokens in seconds, "deny": alice does not agree
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import time
import urllib.request

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback only

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.errors import InvalidGrantError
from authlib.oauth2.rfc6749.models import AuthorizationCodeMixin, ClientMixin
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from authlib.oidc.core.grants import OpenIDCode
from flask import Flask, jsonify, request
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import make_server

URN = "urn:ietf:params:oauth"
JAG = "oauth-id-jag+jwt"

app = Flask(__name__)
clients: dict[str, Client] = {}
codes: dict[str, Code] = {}
changes: dict = {}
keys: list[RSAKey] = []
refreshable: dict[str, Refreshable] = {}
jtis: set[str] = set()  # of assertions, which are good once
issuer = ""


class User:
    def get_user_id(self):
        return "alice"


class Client(ClientMixin):
    def __init__(self, info, metadata):
        self.info, self.metadata = info, metadata

    def get_client_id(self):
        return self.info["client_id"]

    def get_default_redirect_uri(self):
        return self.metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope):
        return scope or ""

    def check_redirect_uri(self, redirect_uri):
        uris = self.metadata.get("redirect_uris", [])
        return redirect_uri in uris or re.sub(r":\d+/", "/", redirect_uri) in uris  # RFC 8252, section 7.3

    def check_client_secret(self, client_secret):
        return client_secret == self.info["client_secret"]

    def check_endpoint_auth_method(self, method, endpoint):
        return True

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in self.metadata.get("grant_types", ["authorization_code"])


class Code(AuthorizationCodeMixin):
    def __init__(self, code, request):
        self.code, self.redirect_uri, self.scope = code, request.payload.redirect_uri, request.payload.scope
        self.code_challenge = request.payload.data.get("code_challenge")
        self.code_challenge_method = request.payload.data.get("code_challenge_method")

        self.get_nonce = self.get_auth_time = self.get_acr = self.get_amr = lambda: None

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")

    def save_authorization_code(self, code, request):
        codes[code] = Code(code, request)

    def query_authorization_code(self, code, client):
        return codes.get(code)

    def delete_authorization_code(self, authorization_code):
        del codes[authorization_code.code]

    def authenticate_user(self, authorization_code):
        return User()


class Refreshable:
    def __init__(self, token, client_id):
        self.token, self.client_id = token, client_id

    def check_client(self, client):
        return client.get_client_id() == self.client_id

    def get_scope(self):
        return self.token.get("scope", "")


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token):
        return refreshable.get(refresh_token)

    def authenticate_user(self, refresh_token):
        return User()

    def revoke_old_credential(self, refresh_token):
        del refreshable[refresh_token.token["refresh_token"]]


class Issuer(IssuerParameter):
    def get_issuer(self):
        return issuer


class CredentialsGrant(grants.ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "private_key_jwt")


class ClientKey(JWTBearerClientAssertion):
    CLIENT_AUTH_METHOD = "private_key_jwt"

    def get_audiences(self):
        return [issuer]

    def validate_jti(self, claims, jti):
        new = jti not in jtis
        jtis.add(jti)
        return new

    def resolve_client_public_key(self, client):
        return KeySet.import_key_set(client.metadata["jwks"])


class Identity(OpenIDCode):
    def resolve_client_private_key(self, client):
        return keys[-1]

    def get_client_claims(self, client):
        return {"iss": issuer, "aud": client.get_client_id()}

    def generate_user_info(self, user, scope):
        return {"sub": user.get_user_id()}


class Assertions(grants.BaseGrant, grants.TokenEndpointMixin):
    """A grant of a JWT, in the parameter FIELD."""

    def validate_token_request(self):
        self.request.client = self.authenticate_token_endpoint_client()
        try:
            token = jwt.decode(self.request.form[self.FIELD], self.keys(), algorithms=["RS256"])
        except JoseError as error:
            raise InvalidGrantError(str(error)) from None
        claims = {"typ": token.header.get("typ"), **token.claims}
        if self.expected().items() - claims.items() or claims["exp"] < time.time():
            raise InvalidGrantError(f"{claims} is not {self.expected()}")


class Exchange(Assertions):
    GRANT_TYPE = f"{URN}:grant-type:token-exchange"
    FIELD = "subject_token"

    def keys(self):
        return keys[-1]

    def expected(self):
        return {"iss": issuer, "aud": self.client.get_client_id()}

    def create_token_response(self):
        form, now = self.request.form, int(time.time())
        if changes.get("deny"):
            raise InvalidGrantError("not for alice")
        claims = {"iss": issuer, "sub": "alice", "aud": form["audience"], "resource": form["resource"]}
        claims |= {"client_id": "mcpmux", "scope": form["scope"], "iat": now, "exp": now + 60}
        token = jwt.encode({"alg": "RS256", "typ": JAG}, claims | {"jti": secrets.token_hex()}, keys[-1])
        response = {"access_token": token, "issued_token_type": form["requested_token_type"]}
        return 200, {**response, "token_type": "N_A"}, self.TOKEN_RESPONSE_HEADER


class Asserted(Assertions):
    GRANT_TYPE = f"{URN}:grant-type:jwt-bearer"
    FIELD = "assertion"
    TOKEN_ENDPOINT_AUTH_METHODS = ("private_key_jwt",)

    def keys(self):
        payload = self.request.form[self.FIELD].split(".")[1]
        provider = json.loads(base64.urlsafe_b64decode(payload + "=="))["iss"]
        with urllib.request.urlopen(f"{provider}/keys") as answer:
            return KeySet.import_key_set(json.load(answer))

    def expected(self):
        form = self.request.form
        return {"typ": JAG, "aud": issuer, "client_id": "mcpmux", "resource": form["resource"]}

    def create_token_response(self):
        token = self.generate_token(User(), self.request.form["scope"], include_refresh_token=False)
        return 200, token, self.TOKEN_RESPONSE_HEADER


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return "open"

    def get_server_metadata(self):
        return metadata()

    def save_client(self, client_info, client_metadata, request):
        client_info["client_id"] = request.payload.data.get("client_id", client_info["client_id"])
        client = clients[client_info["client_id"]] = Client(client_info, client_metadata)
        return client


class Tokens(JWTBearerTokenGenerator):
    def get_jwks(self):
        return keys[-1]

    def get_audiences(self, client, user, scope):
        return request.form.get("resource", client.get_client_id())

    def get_extra_claims(self, client, grant_type, user, scope):
        return {name: value for name, value in changes.items() if name not in ("alg", "lifetime", "deny")}

    def access_token_generator(self, client, grant_type, user, scope):
        token = super().access_token_generator(client, grant_type, user, scope)
        if changes.get("alg") != "none":
            return token
        header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "at+jwt"}).encode())
        return f"{header.rstrip(b'=').decode()}.{token.split('.')[1]}."


def metadata():
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "jwks_uri": f"{issuer}/keys",
        "response_types_supported": ["code"],
        "grant_types_supported": [
            *("authorization_code", "client_credentials", "refresh_token"),
            *(Exchange.GRANT_TYPE, Asserted.GRANT_TYPE),
        ],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": [
            *("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
        ],
        "scopes_supported": ["read", "tools", "offline_access"],
        "authorization_response_iss_parameter_supported": True,
    }


def save_token(token, request):
    if "refresh_token" in token:
        refreshable[token["refresh_token"]] = Refreshable(token, request.client.get_client_id())


server = AuthorizationServer(app, query_client=clients.get, save_token=save_token)
server.register_extension(Issuer())
server.register_grant(RefreshGrant)
server.register_client_auth_method("private_key_jwt", ClientKey())
server.register_grant(CodeGrant, [CodeChallenge(required=True), Identity()])
server.register_grant(CredentialsGrant)
server.register_grant(Exchange)
server.register_grant(Asserted)
server.register_endpoint(Registration)


@app.get("/.well-known/oauth-authorization-server")
def tell_metadata():
    return jsonify(metadata())


@app.get("/keys")
def tell_keys():
    return jsonify({"keys": [keys[-1].as_dict(private=False, use="sig", alg="RS256")]})


@app.get("/authorize")
def authorize():
    user = None if changes.get("deny") else User()
    return server.create_authorization_response(
        grant_user=user, grant=server.get_consent_grant(end_user=User())
    )


@app.post("/token")
def token():
    return server.create_token_response()


@app.post("/register")
def register():
    return server.create_endpoint_response("client_registration")


@app.post("/rotate")
def rotate():
    keys.append(RSAKey.generate_key(2048, {"kid": f"key-{time.time_ns()}"}))
    return jsonify({})


@app.post("/next")
def set_next():
    changes.clear()
    changes.update(request.get_json())
    return jsonify({})


def main():
    global issuer
    keys.append(RSAKey.generate_key(2048, {"kid": "key-1"}))
    listening = make_server("127.0.0.1", 0, app, threaded=True)
    issuer = f"http://127.0.0.1:{listening.server_port}"
    tokens = Tokens(
        issuer=issuer,
        refresh_token_generator=lambda **_: secrets.token_urlsafe(32),
        expires_generator=lambda client, grant: changes.get("lifetime", 3600),
    )
    server.register_token_generator("default", tokens)
    print(issuer, flush=True)
    listening.serve_forever()


if __name__ == "__main__":
    main()

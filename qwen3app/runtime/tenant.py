"""Whose work this is: prompts that different tenants send share nothing in the prefix cache.

A context variable, because the layer that knows a request's tenant (the keys of server/gate.py) and the one that
submits its work are far apart, and everything between them would only hand it on. Set it before `Runtime.generate`, in
the same task. Empty: there is only one tenant.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar

TENANT: ContextVar[str] = ContextVar("tenant", default="")


def tenant_of(key: str) -> str:
    """A tenant's name made of its key, which nobody can turn back; all names have one length."""
    return hashlib.sha256(b"qwen3 tenant " + key.encode()).hexdigest()[:32]


def salted(cache_salt: str) -> str:
    """The engine's salt: the current tenant's name and the request's own salt. Equal only if both are, since a server
    has tenants for all of its requests or for none."""
    return TENANT.get() + cache_salt

"""Compiles constraints in processes that can be ended, so that none of them costs a server more than its one request.

`process.py` is the server's side, `child.py` the other, `messages.py` what goes between them, `checking.py` the work
itself. Imports of ours: abi, text, errors. Knows nothing of asyncio, models or HTTP.
"""

# The program's own command that is one of these processes; it is for no person, so it is in no help.
COMMAND = "compile-constraints"

"""The one error of the text layer, and the check that text is valid Unicode.

Owns: TextError. Knows nothing of HTTP; the server turns a TextError into status 400 with `param`.
Invariants: the message is one sentence that says what is wrong, where, and what to do.
Threads: pure, any thread.
"""

from __future__ import annotations


class TextError(ValueError):
    """Input (or a file of the model directory) that the text layer cannot use.

    param: where in the request the fault lies, as a path like `messages[2].content[0]`; None for faults of files.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def check_unicode(text: str, param: str | None = None) -> None:
    """Raises TextError with the position when text holds a lone surrogate (JSON's "\\ud800" makes one).

    Such text has no UTF-8 form, so it has no tokens. The chat template also relies on its absence: surrogates are
    what it marks its own control tokens with.
    """
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"{param} " if param else "the text "
        raise TextError(
            f"{where}holds half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is not valid Unicode; send the whole character.",
            param,
        ) from None

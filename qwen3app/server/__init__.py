"""The HTTP server: OpenAI's API over one Runtime. One file per API face; see app.py for how they are put together."""

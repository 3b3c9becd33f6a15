"""The terminal chat. session.py is the conversation, the other files are the terminal around it."""

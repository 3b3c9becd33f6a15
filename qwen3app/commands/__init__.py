"""Commands that look at a model directory without serving it: info, verify; and the licences of what is inside."""

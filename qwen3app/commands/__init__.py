"""Commands that serve nobody: info, verify, bench, profile; and the licences of what is inside."""

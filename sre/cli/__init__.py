"""Commands: parse, load settings, call one function, print, exit code."""

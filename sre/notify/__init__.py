"""Who is told what, when: message forms, error classes, back-off. Pure."""

"""Shakespeare's plays, the text of every speaking role a client's own."""

"""Small experiments that show why, with numbers of this machine's own."""

"""x86-64: instructions, their effects, displaced copies, generated code. Knows no process and no file."""

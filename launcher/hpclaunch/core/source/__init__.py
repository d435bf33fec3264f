"""What a program does before it imports torch, read off its text."""

"""Who guesses ahead: drafters and the trees they propose. What a drafter says never changes an output, only its cost."""

"""How the small agent `base` was made: a tiny model, lessons drawn from pocket, pretraining, lists of tasks for it."""

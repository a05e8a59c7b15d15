"""How the small agent `base` was made: a tiny model, lessons made from pocket, pretraining, lists of tasks for it."""

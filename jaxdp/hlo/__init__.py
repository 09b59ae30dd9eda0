"""Reading compiled programs: their collectives, FLOPs and loops."""

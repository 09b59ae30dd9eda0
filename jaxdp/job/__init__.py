"""One run over many processes: joining, agreeing, launching, watching."""

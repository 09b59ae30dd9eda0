"""Where it is trained, synchronously: DDP, ZeRO-1, FSDP and HSDP on a device mesh."""

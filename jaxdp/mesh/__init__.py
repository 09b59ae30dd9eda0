"""A strategy at work: layouts, the train step, and the mesh that they run on."""

"""How fast a training job will be, foretold from its dimensions and its hardware."""

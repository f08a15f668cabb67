"""Server steps: how the model moves by a round's aggregate, a file a step."""

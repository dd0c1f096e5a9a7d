"""From a recipe to a trained net."""

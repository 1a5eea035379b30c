"""Who answers: the models behind us."""

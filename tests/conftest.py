"""Every run draws the same examples and the same numbers."""

import pytest
import torch
from hypothesis import Phase, settings

settings.register_profile("same", derandomize=True, deadline=None, database=None, max_examples=30)
settings.register_profile("unshrunk", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("same")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)

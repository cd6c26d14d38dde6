from __future__ import annotations

import pytest

from relax_lightning.algorithms.kl_controller import KLController


def test_steps_of_the_controller() -> None:
    controller = KLController(0.1, target=6.0, horizon=100)
    # 10 % too high, 50 of 100 samples: 1 + .1 * .5.
    controller.update(6.6, 50)
    assert controller.kl_coef == pytest.approx(0.105)
    # Far off either way counts as 20 %.
    controller.update(600.0, 50)
    assert controller.kl_coef == pytest.approx(0.105 * 1.1)
    controller.update(-3.0, 50)
    assert controller.kl_coef == pytest.approx(0.105 * 1.1 * 0.9)
    controller.update(6.0, 1000)
    assert controller.kl_coef == pytest.approx(0.105 * 1.1 * 0.9)


def test_state_goes_on_only_where_it_is_steered() -> None:
    steered, fixed = KLController(0.1, target=1.0, horizon=10), KLController(0.1)
    steered.update(5.0, 10)
    fixed.update(5.0, 10)
    assert (steered.kl_coef, fixed.kl_coef) == (pytest.approx(0.12), 0.1)
    again, other = KLController(0.5, target=1.0), KLController(0.5)
    again.load_state_dict(steered.state_dict())
    other.load_state_dict(steered.state_dict())
    assert (again.kl_coef, other.kl_coef) == (steered.kl_coef, 0.5)

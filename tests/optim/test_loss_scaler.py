import pytest
import torch

from mmstable.optim.loss_scale import LossScaler, ScalePolicy


def scaler(**settings) -> LossScaler:
    return LossScaler(ScalePolicy(**settings))


def test_moves_as_torchs_does():
    # torch's has neither floor nor cap: move them out of the way.
    ours = scaler(
        init_scale=64.0, growth_interval=3, min_scale=2**-99, max_scale=2**99
    )
    theirs = torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=3)
    theirs.scale(torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        bad = torch.rand((), generator=generator) < 0.2
        torch._amp_update_scale_(
            theirs._scale, theirs._growth_tracker, bad.float(), 2.0, 0.5, 3
        )
        if bad:
            ours.note_bad_gradients()
        else:
            ours.note_clean_step()
        assert ours.get_scale() == theirs.get_scale()
        assert ours.state_dict()['_growth_tracker'] == theirs._growth_tracker


def test_floor_and_cap_hold_for_ever():
    low, high = scaler(min_scale=4.0), scaler(max_scale=2.0**17)
    for _ in range(300):
        low.note_bad_gradients()
    for _ in range(2000 * 3):
        high.note_clean_step()
    assert low.get_scale() == 4.0
    assert not low.can_shrink
    assert high.get_scale() == 2.0**17


def test_the_default_floor_is_never_zero():
    ours = scaler()
    for _ in range(500):
        ours.note_bad_gradients()
    assert ours.get_scale() == 1.0


def test_hysteresis_resets_on_a_clean_step():
    ours = scaler(init_scale=8.0, hysteresis=2)
    ours.note_bad_gradients()
    ours.note_clean_step()
    ours.note_bad_gradients()
    assert ours.get_scale() == 8.0
    ours.note_bad_gradients()
    assert ours.get_scale() == 4.0


def test_frozen_stays():
    ours = scaler(init_scale=512.0, frozen=True, growth_interval=1)
    ours.note_clean_step()
    ours.note_bad_gradients()
    assert ours.get_scale() == 512.0


def test_disabled_does_nothing():
    ours = LossScaler(ScalePolicy(), enabled=False)
    ours.note_bad_gradients()
    loss = torch.ones(())
    assert ours.scale(loss) is loss
    assert (ours.get_scale(), ours.state_dict()) == (1.0, {})
    assert ours.load_state_dict(dict(scale=8.0)) == []


def test_scale_takes_what_torchs_takes():
    ours = scaler(init_scale=8.0)
    one = torch.ones(())
    assert ours.scale(one).item() == 8.0
    assert [x.item() for x in ours.scale([one, one * 2])] == [8.0, 16.0]
    assert isinstance(ours.scale((one,)), tuple)
    assert [x.item() for x in ours.scale(iter([one]))] == [8.0]
    with pytest.raises(TypeError, match='iterable of tensors, got float'):
        ours.scale(1.0)


def test_a_half_loss_is_scaled_in_full_precision():
    scaled = scaler(init_scale=2.0**16).scale(torch.tensor(2.0).half())
    assert scaled.item() == 2.0**17


def test_state_goes_to_torch_and_back():
    ours = scaler(init_scale=256.0)
    ours.note_clean_step()
    theirs = torch.amp.GradScaler('cpu')
    theirs.load_state_dict(ours.state_dict())
    assert theirs.get_scale() == 256.0
    theirs.load_state_dict({**theirs.state_dict(), 'scale': 128.0})
    back = scaler()
    assert back.load_state_dict(theirs.state_dict()) == []
    assert back.get_scale() == 128.0
    assert back.state_dict()['_growth_tracker'] == 1


def test_configured_settings_win():
    state = scaler(growth_interval=7, max_scale=2.0**20).state_dict()
    ours = scaler(init_scale=64.0, max_scale=1024.0)
    notes = ours.load_state_dict(state)
    assert ours.get_scale() == 1024.0
    assert ours.policy.growth_interval == 2000
    assert notes == [
        'growth_interval 7 in the checkpoint, 2000 configured',
        'max_scale 1048576.0 in the checkpoint, 1024.0 configured',
        'scale 65536.0 in the checkpoint, but it must be in [1.0, 1024.0]: '
        '1024.0 is used',
    ]


@pytest.mark.parametrize('broken', [0.0, float('inf'), float('nan'), -1.0])
def test_a_collapsed_scale_is_not_taken_over(broken):
    ours = scaler(init_scale=64.0)
    notes = ours.load_state_dict({**ours.state_dict(), 'scale': broken})
    assert ours.get_scale() == 64.0
    assert len(notes) == 1


def test_patience_survives_a_resume():
    ours = scaler(init_scale=8.0, hysteresis=2)
    ours.note_bad_gradients()
    resumed = scaler(init_scale=8.0, hysteresis=2)
    resumed.load_state_dict(ours.state_dict())
    resumed.note_bad_gradients()
    assert resumed.get_scale() == 4.0

"""What each check of a setting takes, refuses and says."""

from functools import partial

import pytest

from mmstable import settings

INF, NAN = float('inf'), float('nan')


@pytest.mark.parametrize(
    ('check', 'value', 'taken'),
    [
        (settings.integer, 3, 3),
        (settings.integer, 1e4, 10000),
        (settings.integers, 3, [3]),
        (settings.integers, (1, 2.0), [1, 2]),
        (settings.number, -3, -3.0),
        (partial(settings.number, above=0, at_most=1), 1, 1.0),
        (settings.flag, False, False),
        (partial(settings.one_of, known=('a', 'b')), 'b', 'b'),
        (settings.text, 'a', 'a'),
        (settings.names, 'a', ('a',)),
        (settings.names, ['a', 'b'], ('a', 'b')),
        (settings.mapping, None, {}),
        (settings.mapping, {'a': 1}, {'a': 1}),
    ],
)
def test_what_is_taken(check, value, taken):
    found = check('Owner', 'name', value)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ('check', 'values', 'error', 'rule'),
    [
        (settings.integer, [0, 1.5, NAN, INF], ValueError, 'an int of at le'),
        (settings.integer, [True, '1', None], TypeError, 'an int of at least'),
        (
            settings.integers,
            [0, [], [1, True], 'ab', None],
            ValueError,
            'an int of at least 1 or a list of these',
        ),
        (settings.number, [NAN, INF], ValueError, 'a finite number'),
        (settings.number, [True, '1', None], TypeError, 'a finite number'),
        (
            partial(settings.number, above=0, at_most=1),
            [0, 1.5, -1],
            ValueError,
            'a finite number above 0 and at most 1',
        ),
        (
            partial(settings.number, at_least=0, below=1),
            [-0.1, 1],
            ValueError,
            'a finite number of at least 0 and below 1',
        ),
        (settings.flag, [0, 1, 'yes', None], TypeError, 'a bool'),
        (
            partial(settings.one_of, known=('a', 'b')),
            ['c', 3, None, []],
            ValueError,
            'one of a, b',
        ),
        (settings.text, ['', 3, None], TypeError, 'a str that is not empty'),
        (settings.names, [3, [''], None], TypeError, 'a name or a list of'),
        (settings.pattern, ['', 3], TypeError, 'a name or a regular express'),
        (settings.pattern, ['('], ValueError, 'a regular expression '),
        (settings.mapping, [3, [1]], TypeError, 'a dict'),
    ],
)
def test_what_is_refused(check, values, error, rule):
    for value in values:
        with pytest.raises(error) as caught:
            check('Owner', 'name', value)
        text = str(caught.value)
        assert text.startswith(f'Owner: `name` must be {rule}')
        assert text.endswith(f', got {value!r}.')


def test_an_owner_may_be_added_by_the_caller():
    with pytest.raises(TypeError, match='^`name` must be a bool, got 1.$'):
        settings.flag('', 'name', 1)


@pytest.mark.parametrize(
    ('word', 'hint'),
    [
        ('poli', ' Did you mean poly?'),
        ('stop', ' Did you mean stoop or step?'),
        # Whatever the capitals; and not what is much less like it.
        ('adamw', ' Did you mean AdamW?'),
        ('max_iter', ' Did you mean max_iters?'),
        ('xyz', ''),
        (3, ''),
    ],
)
def test_near_words_are_offered(word, hint):
    known = ['poly', 'step', 'stoop', 'AdamW', 'Adamax', 'max_iters']
    known += ['val_interval']
    assert settings.did_you_mean(word, known) == hint


def test_choices_come_with_near_ones():
    message = "one of poly, step, got 'poli'. Did you mean poly?"
    with pytest.raises(ValueError, match=message.replace('?', r'\?')):
        settings.one_of('Owner', 'name', 'poli', ('poly', 'step'))


@pytest.mark.parametrize(
    ('known', 'message'),
    [
        (
            ['max_norm', 'window'],
            'Owner: no setting `max_nrom`; there are max_norm, window. Did '
            'you mean max_norm?',
        ),
        ([], 'Owner: no setting `max_nrom`; there are none.'),
    ],
)
def test_unknown_settings_are_refused(known, message):
    settings.known_settings('Owner', known, known)
    with pytest.raises(ValueError) as caught:
        settings.known_settings('Owner', [*known, 'max_nrom'], known)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ('known', 'hint'),
    [
        (['net.head', 'net.norm'], 'Did you mean net.head?'),
        (list('abcdef'), 'There is a, b, c, d, e, ....'),
        (['a'], 'There is a.'),
        ([], 'There is nothing.'),
    ],
)
def test_a_pattern_without_match_is_explained(known, hint):
    text = settings.no_match('param', 'net.haed', known)
    assert text == f"`param` 'net.haed' matches nothing. {hint}"

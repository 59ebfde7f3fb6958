from tests.attack.http import attack, made


def test_no_malformed_request_is_too_much():
    ended = attack(seed=1, count=500)
    assert sum(ended.values()) == 500
    assert {"200", "400", "401", "415", "431"} <= set(ended)  # the cases reach deep


def test_cases_can_be_repeated():
    assert [made(3, number) for number in range(50)] == [made(3, number) for number in range(50)]
    assert made(3, 0) != made(4, 0)

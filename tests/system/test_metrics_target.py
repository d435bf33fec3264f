"""The target of metrics, from the user's text."""

from __future__ import annotations

import pytest

from hpclaunch.system.metrics_target import MetricsTarget, parse


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("9400", MetricsTarget(port=9400)),
        ("0.0.0.0:9400", MetricsTarget(port=9400, address="0.0.0.0")),
        ("[::]:9400", MetricsTarget(port=9400, address="::")),
        ("[::1]:9400", MetricsTarget(port=9400, address="::1")),
        ("job.prom", MetricsTarget(file="job.prom")),
        ("/var/lib/x/job.prom", MetricsTarget(file="/var/lib/x/job.prom")),
        ("/var/lib/x", MetricsTarget(directory="/var/lib/x")),
        ("metrics/", MetricsTarget(directory="metrics/")),
        (".", MetricsTarget(directory=".")),
    ],
)
def test_what_is_meant(text, target):
    assert parse(text) == target


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "a port is a number from 1 to 65535, not 0"),
        ("65536", "a port is a number from 1 to 65535, not 65536"),
        ("127.0.0.1:0", "a port is a number from 1 to 65535, not 0"),
        ("login1:9400", "'login1' is no IP address"),
        ("[login1]:9400", "'login1' is no IP address"),
        (":9400", "'' is no IP address"),
        ("94OO", "'94OO' is neither PORT"),
        ("-1", "'-1' is neither PORT"),
        ("job.txt", "'job.txt' is neither PORT"),
    ],
)
def test_what_is_not(text, why):
    with pytest.raises(ValueError, match="^" + why.replace("[", r"\[")):
        parse(text)

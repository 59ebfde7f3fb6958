import re

from calibre.pages.prometheus import ServiceMetrics

LINE = re.compile(  # as in Prometheus's description of its text format
    r'[a-zA-Z_:][\w:]*(?:\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*",?)*\})? (?:[0-9.e+-]+|\+Inf)'
)


def test_every_line_is_a_comment_or_a_sample():
    metrics = ServiceMetrics()
    metrics.count("a_total", "Of a.", path="/", status="200")
    metrics.count("a_total", "Of a.", by=2, path="/x", status="404")
    metrics.look_up("b", "Of b.", lambda: 2.5)
    metrics.took("c_seconds", "Of c.", 0.003, path="/")
    metrics.took("d_seconds", "Of d.", 1e9)
    text = metrics.text()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(r"# (?:HELP \w+ .+|TYPE \w+ (?:counter|gauge|histogram))", line) or (
            LINE.fullmatch(line)
        ), line
    assert 'a_total{path="/x",status="404"} 2' in text
    assert "\nb 2.5\n" in text


def test_a_histogram_counts_what_took_at_most_so_long():
    metrics, took = ServiceMetrics(), [0.001, 0.0011, 0.004, 0.2, 30.0]
    for seconds in took:
        metrics.took("t", "T.", seconds)
    found = dict(re.findall(r't_bucket\{le="(.+?)"\} (\d+)', metrics.text()))
    for bound, count in found.items():
        assert int(count) == sum(seconds <= float(bound) for seconds in took), bound
    assert found["+Inf"] == "5"
    assert f"t_sum {sum(took):g}" in metrics.text()
    assert "t_count 5" in metrics.text()

import io

import pytest

from anyprobe.cli.terminal import output


@pytest.mark.parametrize(
    ("columns", "width"),
    [(None, output.UNLIMITED_WIDTH), ("80", 80), *((text, output.UNLIMITED_WIDTH) for text in ("", "0", "x", "-5"))],
)
def test_a_file_is_as_wide_as_columns_says(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert output.console(io.StringIO()).width == width

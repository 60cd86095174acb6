"""The names of strategies, wherever they are listed: options, schemas and explanations know the same ones."""

import json

from anyprobe.cli.commands.schema import kinds, text_of
from anyprobe.cli.syntax.options import MECHANISMS
from anyprobe.cli.syntax.options import STRATEGIES as CHOICES
from anyprobe.data.findings.explanation import WAYS
from anyprobe.probes.options import STRATEGIES as OPTIONS
from anyprobe.splice.plan.splices import Strategy

NAMES = {strategy.value for strategy in Strategy}


def schema_names(document):
    """Yield the sets of names that a schema allows for a strategy."""
    if isinstance(document, dict):
        if "enum" in document.get("strategy", {}):
            yield set(document["strategy"]["enum"])
        for part in document.values():
            yield from schema_names(part)


def test_options_offer_every_strategy():
    assert set(CHOICES) == set(OPTIONS) == {*NAMES, "auto"}


def test_explanations_describe_every_strategy():
    assert set(WAYS) >= NAMES
    assert set(WAYS) - NAMES <= set(MECHANISMS)  # these are the kernel's


def test_schemas_allow_every_strategy():
    found = [names for each in kinds() for names in schema_names(json.loads(text_of(each)))]
    assert found
    assert all(names >= NAMES for names in found), found

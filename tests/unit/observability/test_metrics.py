"""Prometheus metrics: turns by route, bounded labels, and the state of the queue."""

import pytest

from holdfast.core.model.session import Usage
from holdfast.observability.metrics import MAX_LABEL_SETS, MAX_TENANT_MODELS, PrometheusMeter
from holdfast.ports.request_context import RequestContext, current_request


@pytest.fixture
def meter() -> PrometheusMeter:
    """A meter with nothing counted."""
    return PrometheusMeter()


def text_of(meter: PrometheusMeter) -> str:
    return meter.render().decode()


def test_a_turn_is_counted_by_outcome_tenant_upstream_and_model(meter: PrometheusMeter) -> None:
    context = RequestContext("req_1", tenant="acme", model="gpt-5", upstream="openai")
    context.usage = Usage(100, 40, 7, 0)
    context.first_token_at = context.started_at + 0.3
    current_request.set(context)
    meter.turn_accepted("user", "started")
    assert "holdfast_turns_in_flight 1.0" in text_of(meter)
    meter.run_ended("completed")
    text = text_of(meter)
    labels = 'model="gpt-5",{}tenant="acme",upstream="openai"}}'
    outcome = labels.format('outcome="completed",')
    assert f"holdfast_turns_total{{{outcome} 1.0" in text
    assert f'holdfast_tokens_total{{kind="input",{labels.format("")} 100.0' in text
    assert f'holdfast_tokens_total{{kind="cached",{labels.format("")} 40.0' in text
    assert f'holdfast_tokens_total{{kind="output",{labels.format("")} 7.0' in text
    assert f'holdfast_first_token_seconds_bucket{{le="0.25",{labels.format("")} 0.0' in text
    assert f'holdfast_first_token_seconds_bucket{{le="0.5",{labels.format("")} 1.0' in text
    assert "holdfast_turns_in_flight 0.0" in text


def test_a_queued_turn_is_shown_until_it_runs(meter: PrometheusMeter) -> None:
    context = RequestContext("req_1")
    current_request.set(context)
    meter.turn_accepted("user", "queued")
    assert "holdfast_turns_queued 1.0" in text_of(meter)
    assert "holdfast_oldest_queued_seconds 0.0\n" not in text_of(meter)
    meter.lane_waited(2.0)
    text = text_of(meter)
    assert "holdfast_turns_queued 0.0" in text
    assert "holdfast_oldest_queued_seconds 0.0\n" in text
    assert "holdfast_turns_in_flight 1.0" in text


def test_an_earlier_turn_that_goes_on_is_no_new_one(meter: PrometheusMeter) -> None:
    for admission, gauge in (("started", "in_flight"), ("queued", "queued")):
        current_request.set(RequestContext("req_1"))
        meter.turn_accepted("user", admission, is_new=False)
        assert f"holdfast_turns_{gauge} 1.0" in text_of(meter)
        meter.run_ended("completed")
    meter.turn_accepted("user", "repeated", is_new=False)
    counted = 'holdfast_turns_accepted_total{admission="%s",source="user"} %s'
    assert counted % ("continued", "2.0") in text_of(meter)
    assert counted % ("repeated", "1.0") in text_of(meter)
    assert 'admission="started"' not in text_of(meter)


def test_a_request_that_vanishes_leaves_the_queue(meter: PrometheusMeter) -> None:
    context: RequestContext | None = RequestContext("req_1")
    current_request.set(context)
    meter.turn_accepted("user", "queued")
    current_request.set(None)
    context = None
    assert "holdfast_turns_queued 0.0" in text_of(meter)


def end_run(meter: PrometheusMeter, tenant: str, model: str) -> None:
    current_request.set(RequestContext("req", tenant=tenant, upstream="u", model=model))
    meter.run_ended("completed")


def turns_of(meter: PrometheusMeter, tenant: str) -> dict[str, float]:
    """Return the number of a tenant's turns by model."""
    lines = [line for line in text_of(meter).splitlines() if "holdfast_turns_total{" in line]
    found = [line for line in lines if f'tenant="{tenant}",upstream="u"' in line]
    return {line.split('model="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


def test_labels_are_bounded(meter: PrometheusMeter) -> None:
    for number in range(MAX_TENANT_MODELS + 50):
        end_run(meter, "t", f"m{number}")
    counted = turns_of(meter, "t")
    assert len(counted) == MAX_TENANT_MODELS + 1
    assert counted["other"] == 50.0


def test_the_model_names_of_one_tenant_use_up_no_labels_of_others(meter: PrometheusMeter) -> None:
    meter.known_models = frozenset({"gpt-5"})
    for number in range(5 * MAX_LABEL_SETS):
        end_run(meter, "noisy", f"junk-{number}")
    end_run(meter, "noisy", "gpt-5")
    end_run(meter, "quiet", "gpt-5")
    end_run(meter, "quiet", "not-configured")
    assert turns_of(meter, "quiet") == {"gpt-5": 1.0, "not-configured": 1.0}
    assert turns_of(meter, "noisy")["gpt-5"] == 1.0


def test_models_of_the_configuration_keep_their_labels_whatever_many_tenants_send(
    meter: PrometheusMeter,
) -> None:
    meter.known_models = frozenset({"gpt-5"})
    for number in range(MAX_LABEL_SETS + 50):
        end_run(meter, f"t{number % 10}", f"junk-{number}")
    end_run(meter, "quiet", "gpt-5")
    end_run(meter, "quiet", "not-configured")
    assert turns_of(meter, "quiet") == {"gpt-5": 1.0, "other": 1.0}


def test_tenants_are_bounded_too(meter: PrometheusMeter) -> None:
    for number in range(3 * MAX_LABEL_SETS):
        current_request.set(RequestContext("req", tenant=f"t{number}", upstream="u", model="m"))
        meter.run_ended("completed")
    lines = [line for line in text_of(meter).splitlines() if "holdfast_turns_total{" in line]
    assert len(lines) == 2 * MAX_LABEL_SETS + 1


def test_the_outbox_has_a_depth_and_an_age() -> None:
    meter = PrometheusMeter()
    meter.outbox_waits(3, 12.5)
    lines = meter.render().decode().splitlines()
    assert "holdfast_outbox_messages 3.0" in lines
    assert "holdfast_outbox_oldest_seconds 12.5" in lines


def test_a_histogram_of_another_part_is_read_at_each_scrape(meter: PrometheusMeter) -> None:
    counts, total = [2, 0, 0], 1.5
    meter.add_histogram("one_seconds", "One.", (1, 5), lambda: (counts, total))
    assert 'one_seconds_bucket{le="1.0"} 2.0' in text_of(meter)
    counts[1] += 3
    counts[2] += 1
    text = text_of(meter)
    assert 'one_seconds_bucket{le="5.0"} 5.0' in text
    assert 'one_seconds_bucket{le="+Inf"} 6.0' in text
    assert "one_seconds_count 6.0" in text
    assert "one_seconds_sum 1.5" in text

"""What the words of ceilings mean, for the end of the report, with the limits that verdicts go by."""

from gpufeed.report.sections import ceilings_verdict
from gpufeed.system.statistics import BUSY, ENOUGH_FOR_INTERVAL, FAR, FEW_PERCENT, MATTERS


def definitions() -> dict[str, str]:
    """word -> definition."""
    fed, lost, half = (
        f"{share * 100:.3g}" for share in (ceilings_verdict.FED, ceilings_verdict.LOST, ceilings_verdict.HALF)
    )
    grown, noted = (f"{share * 100:.1f} points" for share in (ceilings_verdict.GROWN, ceilings_verdict.NOTED))
    return {
        "AU": "Compute-only over end-to-end time: the share of a steady epoch that remains where one batch "
        "on the device is trained on again and again. Both are measured by turns in one process, pair by "
        "pair; given are the median over the pairs and its 95 % interval. What AU lacks to 100 % is wait "
        "and growth.",
        "Wait": "The gaps between training steps on the compute stream, less those that compute only has "
        "too, as a share of the end-to-end time. What a loader queues on that stream itself lies in the "
        "gaps.",
        "Growth": "By how much the steps themselves take longer beside the loader, as a share of the "
        f"end-to-end time. Verdicts tell it from {grown} on.",
        "Points": "Hundredths of the end-to-end time of an epoch. Those of a stage are what its removal can "
        "save at most: they need not add up to the wait, and have their part of the epochs' first batches "
        f"in them. Verdicts leave a stage, and the first batches, below {noted} untold.",
        ceilings_verdict.COMPUTE: f"AU's 95 % interval lies at {fed} % or above: without any input training "
        f"would be at most {MATTERS} times as fast.",
        ceilings_verdict.BALANCED: f"AU's interval lies between {lost} and {fed} %.",
        ceilings_verdict.INPUT: f"AU's interval lies below {lost} %. The stage with most points is named if "
        f"it is shown to take time and has {half} % of the wait. Where growth is larger than wait, the steps "
        "themselves are named.",
        ceilings_verdict.START: "The same, and the first batches of the epochs have more than "
        f"{half} % of the wait, by the lower end of their interval.",
        ceilings_verdict.OPEN: f"AU's interval holds {lost} or {fed} %, or there are fewer than "
        f"{ENOUGH_FOR_INTERVAL} pairs and so no interval.",
        BUSY: f"AU's median lies more than {FEW_PERCENT * 100:.0f} % above 100 %, or the upper end of its "
        f"interval more than {FAR * 100:.0f} %. Training cannot be faster than its compute alone: something "
        "else ran on the machine, and no verdict follows.",
    }

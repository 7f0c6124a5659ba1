#!/usr/bin/env python3
"""Computes a bill of gpupool again, from nothing but its runs and the prices of the month, and compares the two.

  gacct bill --month 2026-10 --runs > runs.csv;  gacct bill --month 2026-10 --prices > prices.json
  gacct bill --month 2026-10 --by account,user --csv > bill.csv;  verify-bill.py runs.csv prices.json bill.csv"""
import csv, json, sys
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal
runs, tariff = csv.DictReader(open(sys.argv[1], newline="")), json.load(open(sys.argv[2]))
first, last, windows = tariff["from_ms"], tariff["to_ms"], tariff["windows"]
cuts = {first, last} | {p["from_ms"] for prices in tariff["prices"].values() for p in prices}
cuts |= {c["from_ms"] for c in tariff["charging"]} | {at for w in windows.values() for span in w for at in span}
cuts = sorted(at for at in cuts if first <= at <= last)
def part(run, before, after):
    start, end, billed = run["start_ms"], run["end_ms"], run["billed_ms"]
    def until(at):
        return billed * (min(max(at, start), end) - start) // (end - start) if end > start else billed * (at > start)
    return until(after) - until(before)

def price_of(kind, part_of, run, at):
    begun = [p for p in tariff["prices"].get(kind, []) if p["from_ms"] <= at]
    for p in begun:
        when = p.get("when", {})
        if (p["from_ms"] == begun[-1]["from_ms"] and when.get("mig", part_of) == part_of
                and (not when.get("share") or part_of == "share") and when.get("partition", run["partition"]) == run["partition"]
                and when.get("qos", run["qos"]) == run["qos"]
                and ("hours" not in when or any(a <= at < b for a, b in windows[when["hours"]]))):
            return p
sums = defaultdict(int)
for run in runs:
    for key in ("start_ms", "end_ms", "billed_ms"):
        run[key] = int(run[key])
    for at in range(max(bisect_right(cuts, run["start_ms"]) - 1, 0), len(cuts) - 1):
        if cuts[at] > run["end_ms"]:
            break
        millis = part(run, cuts[at], cuts[at + 1])
        percent = [c for c in tariff["charging"] if c["from_ms"] <= cuts[at]][-1][run["ending"]]
        for kind, part_of, milli, pieces in json.loads(run["held"]) if millis else []:
            price = price_of(kind, part_of, run, cuts[at]) or {"micro_per_hour": 0, "from_ms": None}
            if price["from_ms"] is None and kind in ("cpu", "memory"):
                continue
            names = tuple(run[k] for k in ("account", "user", "partition", "qos", "tags", "ending", "open"))
            line = names + (kind + (part_of and "/" + part_of), price["from_ms"], price["micro_per_hour"], percent)
            sums[line] += (pieces * 1000 if price.get("per_slice") else milli) * millis

lines, unit = defaultdict(Decimal), 3_600_000 * 1000 * 100
known = ("account", "user", "partition", "qos", "tags", "ending", "open", "resource")
bill = list(csv.DictReader(open(sys.argv[3], newline=""))) if len(sys.argv) > 3 else []
asked = [k for k in ("account", "user", "partition", "qos", "ending", "resource") if bill and k in bill[0]]
for line, held in sums.items():
    whole = held * line[9] * line[10]
    micro = (abs(whole) + unit // 2) // unit * (-1 if whole < 0 else 1)
    lines[tuple(line[known.index(k)] for k in asked)] += Decimal(micro) / 1_000_000
print(f"{tariff['month']}: {sum(lines.values())} {tariff['currency']} for {len(sums)} lines, without corrections")
for row in (row for row in bill if not row["reason"]):
    lines[tuple(row[k] for k in asked)] -= Decimal(row["amount"])
wrong = {group: amount for group, amount in lines.items() if amount and bill}
print("\n".join(f"differs by {amount}: {' '.join(group)}" for group, amount in wrong.items()) or "the bill is right")
sys.exit(bool(wrong))

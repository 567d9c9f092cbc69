#!/usr/bin/env python3
"""Prints the derived catalog files from the public measurements they come from.

    derive.py DATA zeus|pairs|scaling|curves

DATA holds zeus/summary_power_{v100,p100}.csv and zeus/summary_train.csv (ml-energy/zeus,
Apache-2.0), gavel/pairs.csv (stanford-futuredata/gavel, MIT), elasticflow/throughputs_A100/
(pkusys/ElasticFlow, Apache-2.0), chronus/placement_sensitivity.json (S-Lab ChronusArtifact, MIT)
and perseus/stage_profile/ (ml-energy/zeus, Apache-2.0). `zeus`, `pairs` and `scaling` print the
file of that name; `curves` prints the rows that gpus.toml carries. Only the standard library.
"""
import collections
import csv
import json
import statistics
import sys

DATA = sys.argv[1] if len(sys.argv) > 2 else sys.exit(__doc__)

# One optimizer for each network: the one both the V100 and the P100 file have.
OPTIMIZER = {"shufflenetv2": "adadelta", "resnet50": "adadelta", "deepspeech2": "adamw",
             "ncf": "adam", "bert_base_uncased": "adamw"}
# dataset: (name in ids, samples of an epoch, target metric of the Zeus paper, epochs where the
# train file has no run of that batch size that reaches it).
DATASET = {"cifar100": ("cifar100", 50_000, 0.6), "imagenet": ("imagenet", 1_281_167, 0.65),
           "librispeech": ("librispeech", 281_241, 40.0), "movielens-1m": ("movielens", 4_970_845, 0.41),
           "squad": ("squad", 88_524, 84.0), "sentiment140": ("sentiment140", 1_600_000, 0.84)}
SHORT = {"bert_base_uncased": "bert"}
# Device memory: MiB for each sample, between what the 32 GB V100 ran and the 16 GB P100 did not;
# and MiB beside the samples (context, libraries, parameters with gradient and optimizer state).
MEMORY = {("resnet50", "imagenet"): (82, 1_200), ("deepspeech2", "librispeech"): (160, 1_300),
          ("bert_base_uncased", "squad"): (500, 2_600),
          ("bert_base_uncased", "sentiment140"): (180, 2_600),
          ("shufflenetv2", "cifar100"): (6, 900), ("ncf", "movielens-1m"): (0.05, 1_100)}
IDLE_W = {"v100": 30.0, "p100": 30.0, "a100": 60.0}
# Which family of the pair table a network is like, and how it scales over GPUs and nodes.
FAMILY = {"resnet50": "resnet50", "bert_base_uncased": "transformer", "deepspeech2": "lm",
          "shufflenetv2": "resnet18"}
SCALING = {"resnet50": ("resnet50", "resnet101"), "bert_base_uncased": ("bert", "vgg16"),
           "deepspeech2": ("deepspeech2", "resnet101"), "shufflenetv2": ("resnet50", "mobilenet_v2"),
           "ncf": ("bert", "vgg16")}
# What a trace calls it -> the batch size that stands for it; and whether it is in the mix.
STANDS = {("resnet50", "imagenet", 128): ["resnet50"],
          ("bert_base_uncased", "squad", 16): ["bert", "bert_base", "bert_base_uncased"],
          ("deepspeech2", "librispeech", 64): ["deepspeech2"],
          ("ncf", "movielens-1m", 1024): ["ncf", "neumf"],
          ("shufflenetv2", "cifar100", 512): ["shufflenetv2", "shufflenet"]}
# All of them fit a card of 16 GB.
MIX = {("resnet50", 32), ("resnet50", 64), ("resnet50", 128), ("bert_base_uncased", 8),
       ("bert_base_uncased", 16), ("deepspeech2", 32), ("deepspeech2", 64), ("ncf", 1024),
       ("shufflenetv2", 128), ("shufflenetv2", 512), ("shufflenetv2", 1024)}


def rows(path):
    with open(f"{DATA}/{path}", newline="") as f:
        return list(csv.DictReader(f))


def power_rows(kind):
    found = collections.defaultdict(list)
    for r in rows(f"zeus/summary_power_{kind}.csv"):
        if OPTIMIZER[r["network"]] == r["optimizer"]:
            key = (r["network"], r["dataset"], int(r["batch_size"]))
            found[key].append((int(r["power_limit"]), float(r["time_per_epoch"]), float(r["average_power"])))
    return {k: sorted(v) for k, v in sorted(found.items())}


def epochs_to_target():
    found = collections.defaultdict(list)
    for r in rows("zeus/summary_train.csv"):
        if OPTIMIZER.get(r["network"]) == r["optimizer"] and float(r["target_metric"]) == DATASET[r["dataset"]][2]:
            if r["target_epoch"] not in ("", "-1", "nan"):
                found[r["network"], r["dataset"], int(r["batch_size"])].append(int(float(r["target_epoch"])))
    return found


def zeus():
    v100, p100, reached = power_rows("v100"), power_rows("p100"), epochs_to_target()
    print('''# Workloads of the Zeus traces: one GPU, power caps against epoch time and average power.
# Source: ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/trace (Apache-2.0).
# Printed by derive.py. Every row was measured once, so 1 to 3 % of it is noise.
# epochs: median over the seeds that reach the paper's target; where none of that batch size does,
# of the network's other batch sizes. memory_mib and busy are estimates: docs/world.md.''')
    for key in sorted(set(v100)):
        network, dataset, batch = key
        name, samples, _ = DATASET[dataset]
        model = SHORT.get(network, network)
        per_sample, fixed = MEMORY[network, dataset]
        seeds = reached.get(key) or [e for k, v in reached.items() if k[:2] == key[:2] for e in v]
        print(f'\n[[workload]]\nid = "{model}-{name}-b{batch}"\nmodel = "{model}"\ndataset = "{name}"')
        print(f"batch_size = {batch}\ngpus = 1\nsteps_per_epoch = {-(-samples // batch)}")
        print(f"epochs = {round(statistics.median(seeds))}\nmemory_mib = {round(fixed + per_sample * batch)}")
        if network in FAMILY and not (network == "shufflenetv2" and batch < 128):
            print(f'family = "{FAMILY[network]}"')
        print('scaling = "%s"\nspread = "%s"' % SCALING[network])
        if key in STANDS:
            print("stands_for = " + json.dumps(STANDS[key]))
        if (network, batch) in MIX and dataset != "sentiment140":
            print("mix = true")
        print('source = "ml-energy/zeus NSDI\'23 traces (Apache-2.0)"')
        for kind, table in (("v100", v100), ("p100", p100)):
            if key in table:
                caps, times, watts = zip(*table[key])
                print(f'[[workload.measured]]\ngpu = "{kind}"\ncap_w = {list(caps)}')
                print("epoch_s = [%s]" % ", ".join(f"{t:.1f}" for t in times))
                print("power_w = [%s]" % ", ".join(f"{p:.1f}" for p in watts))


def pairs():
    print('''# Speed of one job beside another on the same card, relative to alone: the mean over batch sizes of
# min(1, packed / alone), pairs that did not run left out. `speed` is that of `family` beside `beside`.
# Source: stanford-futuredata/gavel, simulation throughputs, one GPU a job (MIT). Printed by derive.py.''')
    families = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "Transformer": "transformer", "LM": "lm",
                "Recommendation": "recommendation", "A3C": "a3c", "CycleGAN": "cyclegan"}
    found = collections.defaultdict(list)
    for r in rows("gavel/pairs.csv"):
        if r["gpus_a"] == r["gpus_b"] == "1" and float(r["norm_a"]) > 0 and float(r["norm_b"]) > 0:
            found[r["gpu"], families[r["model_a"]], families[r["model_b"]]].append(min(1.0, float(r["norm_a"])))
    for kind in ("v100", "p100"):
        for (gpu, a, b), speeds in sorted(found.items()):
            if gpu == kind:
                print(f'\n[[pair]]\ngpu = "{gpu}"\nfamily = "{a}"\nbeside = "{b}"\nspeed = {statistics.mean(speeds):.3f}')


def scaling():
    print('''# How fast a job of fixed global batch runs on more GPUs, relative to one (8 a node), and what is
# left of that when the same GPUs are spread over more nodes. Printed by derive.py.
# Sources: pkusys/ElasticFlow, A100 throughputs (Apache-2.0); S-Lab ChronusArtifact (MIT).''')
    batch = {"bert": "128", "deepspeech2": "64", "gpt2": "256", "inception3": "128", "resnet50": "256"}
    for model, b in batch.items():
        for r in rows(f"elasticflow/throughputs_A100/{model}.csv"):
            if r["global_batch_size"] == b:
                known = [(int(n), float(v)) for n, v in r.items() if n.isdigit() and v]
                top, speeds = 0.0, []
                for _, v in known:  # more GPUs never make a job slower: its owner would leave them idle
                    top = max(top, v / known[0][1])
                    speeds.append(round(top, 3))
                print(f'\n[[scaling]]\nname = "{model}"\ngpus = {[n for n, _ in known]}\nspeed = {speeds}')
    with open(f"{DATA}/chronus/placement_sensitivity.json") as f:
        for model, by_gpus in json.load(f).items():
            for gpus, by_nodes in by_gpus.items():
                nodes = sorted((int(n), v) for n, v in by_nodes.items())
                print(f'\n[[spread]]\nname = "{model}"\ngpus = {gpus}\nnodes = {[n for n, _ in nodes]}')
                print(f"speed = {[round(min(1.0, v), 3) for _, v in nodes]}")


def curves():
    """The lines of gpus.toml that hold a throttle curve, an active power or a clock curve."""
    def line(name, points):
        print(f"{name} = [" + ", ".join("[" + ", ".join(str(v) for v in p) + "]" for p in points) + "]")
    for kind in ("v100", "p100"):
        by_cap = collections.defaultdict(list)
        for table in power_rows(kind).values():
            top_cap, top_time, top_power = table[-1]
            if top_power < 0.8 * (250 if kind == "v100" else 200):
                continue
            for cap, time, power in table:
                by_cap[cap].append(((power - IDLE_W[kind]) / (top_power - IDLE_W[kind]), top_time / time, top_power))
        points = []
        for _, v in sorted(by_cap.items()):
            x, speed = (round(statistics.median(p[i] for p in v), 3) for i in (0, 1))
            if x < 1:  # past the top there is only noise
                points.append((x, min(speed, 1.0)))
        line("throttle", [(0.0, 0.0), *points, (1.0, 1.0)])
        print(f"active_w = {statistics.median(v[2] for v in by_cap[250]) - IDLE_W[kind]:.1f}")
    sums = collections.defaultdict(lambda: [0.0, 0.0])
    for r in rows("perseus/stage_profile/bloom+a100_sxm_bf16.csv"):
        sums[int(r["frequency"])][0] += float(r["time"])
        sums[int(r["frequency"])][1] += float(r["energy"])
    top_time, top_energy = sums[1410]
    top_w = top_energy / top_time - IDLE_W["a100"]
    sweep = []
    for mhz in (855, 990, 1080, 1140, 1200, 1260, 1305, 1335):
        time, energy = sums[mhz]
        sweep.append((mhz, round(top_time / time, 3), round((energy / time - IDLE_W["a100"]) / top_w, 3)))
    line("throttle", [(0.0, 0.0), *((x, speed) for _, speed, x in sweep), (1.0, 1.0)])
    # Below the sweep: by the same share of 855 MHz as the clock itself, to the lowest clock.
    low = 210 / 855
    line("clock", [(210, round(sweep[0][1] * low, 3), round(sweep[0][2] * low, 3)), *sweep, (1410, 1.0, 1.0)])


{"zeus": zeus, "pairs": pairs, "scaling": scaling, "curves": curves}[sys.argv[2]]()

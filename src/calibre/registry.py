"""Names that experiments and commands may use, and where each lives. Loaded only when asked for.

Adding a method or an objective takes its own file and one line here; an experiment can also name
a class of your own as ``"my_module:MyMethod"`` without any line.
"""

METHODS = {
    "calibre": "calibre.methods.calibre:Calibre",
    "pfl-ssl": "calibre.methods.pfl_ssl:PflSsl",
    "fedema": "calibre.methods.fedema:FedEMA",
    "fedu": "calibre.methods.fedu:FedU",
    "fedavg": "calibre.methods.fedavg:FedAvg",
    "fedavg-ft": "calibre.methods.fedavg:FedAvg",
    "scaffold": "calibre.methods.scaffold:Scaffold",
    "scaffold-ft": "calibre.methods.scaffold:Scaffold",
    "fedprox": "calibre.methods.fedprox:FedProx",
    "fedprox-ft": "calibre.methods.fedprox:FedProx",
    "fedbn": "calibre.methods.fedbn:FedBN",
    "fedbn-ft": "calibre.methods.fedbn:FedBN",
    "qffl": "calibre.methods.qffl:QFFL",
    "qffl-ft": "calibre.methods.qffl:QFFL",
    "perfedavg": "calibre.methods.perfedavg:PerFedAvg",
    "perfedavg-hf": "calibre.methods.perfedavg:PerFedAvg",
    "fedper": "calibre.methods.fedper:FedPer",
    "fedrep": "calibre.methods.fedrep:FedRep",
    "fedbabu": "calibre.methods.fedbabu:FedBABU",
    "lg-fedavg": "calibre.methods.lg_fedavg:LGFedAvg",
    "ditto": "calibre.methods.ditto:Ditto",
    "apfl": "calibre.methods.apfl:APFL",
    "fedproto": "calibre.methods.fedproto:FedProto",
    "local": "calibre.methods.local_only:Local",
    "local-convergent": "calibre.methods.local_only:Local",
    "untrained": "calibre.methods.untrained:Untrained",
    "pixels": "calibre.methods.pixels:OwnPixels",
    "majority": "calibre.methods.majority:Majority",
}

# where nothing else is said
DEFAULT_METHOD = "calibre"
DEFAULT_OBJECTIVE = "simclr"
DEFAULT_SUITE = ("calibre/simclr", "pfl-ssl/simclr", "fedavg-ft", "fedrep", "local")

# names that stand for a class above with some of its fields set
PRESETS = {
    "fedavg-ft": {"finetune": True},
    "scaffold-ft": {"finetune": True},
    "fedprox-ft": {"finetune": True},
    "fedbn-ft": {"finetune": True},
    "qffl-ft": {"finetune": True},
    "perfedavg-hf": {"hessian_free": True},
    "local-convergent": {"until_converged": True},
}

OBJECTIVES = {
    "simclr": "calibre.ssl.simclr:SimCLR",
    "byol": "calibre.ssl.byol:BYOL",
    "simsiam": "calibre.ssl.simsiam:SimSiam",
    "moco": "calibre.ssl.moco:MoCo",
    "swav": "calibre.ssl.swav:SwAV",
    "smog": "calibre.ssl.smog:SMoG",
}

ENCODERS = {
    "resnet50": "calibre.models.resnet:resnet50",
    "resnet34": "calibre.models.resnet:resnet34",
    "resnet18": "calibre.models.resnet:resnet18",
    "resnet10": "calibre.models.resnet:resnet10",
    "resnet8": "calibre.models.resnet:resnet8",
    "vit_tiny": "calibre.models.vit:vit_tiny",
    "vit_small": "calibre.models.vit:vit_small",
    "vit_base": "calibre.models.vit:vit_base",
    "cnn": "calibre.models.cnn:cnn",
}

# in calibre.data.formats.known; none of them says who owns an image
DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10")

# pictures of finished runs: functions of the runs that return a figure
FIGURES = {
    "mean-variance": "calibre.report.figures.mean_variance:mean_variance",
    "distributions": "calibre.report.figures.clients:distributions",
    "sorted": "calibre.report.figures.clients:ranked",
    "by-classes": "calibre.report.figures.clients:by_classes",
    "by-size": "calibre.report.figures.clients:by_size",
    "curves": "calibre.report.figures.curves:curves",
    "federation": "calibre.report.figures.holdings:of_runs",
}
TSNE = "tsne"  # the one figure that needs the images again: calibre.finished.encodings reads them

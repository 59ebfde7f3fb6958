"""Names that an experiment may use, and where each lives. Loaded only when asked for.

Adding a method or an objective takes its own file and one line here; an experiment can also name
a class of your own as ``"my_module:MyMethod"`` without any line.
"""

METHODS = {
    "calibre": "calibre.methods.calibre:Calibre",
    "pfl-ssl": "calibre.methods.pfl_ssl:PflSsl",
    "fedavg": "calibre.methods.fedavg:FedAvg",
    "fedavg-ft": "calibre.methods.fedavg:FedAvg",
    "local": "calibre.methods.local:Local",
    "untrained": "calibre.methods.untrained:Untrained",
}

OBJECTIVES = {
    "simclr": "calibre.ssl.simclr:SimCLR",
}

ENCODERS = {
    "resnet18": "calibre.models.resnet:resnet18",
    "resnet10": "calibre.models.resnet:resnet10",
    "resnet8": "calibre.models.resnet:resnet8",
    "cnn": "calibre.models.cnn:cnn",
}

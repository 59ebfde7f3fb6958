"""Calibre: Towards Fair and Accurate Personalized Federated Learning with Self-Supervised Learning.

S. Chen, N. Su, B. Li, ICDCS 2024. Algorithm 1 and section IV. On top of any self-supervised
objective,

- k-means prototypes of every batch give two more loss terms:
  L = beta l_c + l_s + alpha_p L_p + alpha_n L_n  (``calibre.calibration.calibrated``), and
- a client's divergence, the mean distance of its encodings to their prototypes, weights it in the
  server's mean: w_c ~ n_c / delta_c^gamma  (``calibre.calibration.divergence``).

With beta = 0 no label is looked at in training; with alpha_p = alpha_n = 0 and gamma = 0 it is
pFL-SSL, bit for bit.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from calibre.calibration.calibrated import Calibrated
from calibre.calibration.divergence import DivergenceSettings, divergence, weight
from calibre.calibration.kmeans import kmeans
from calibre.calibration.regularizers import Regularizers
from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Number, ServerState, Update
from calibre.methods.pfl_ssl import ModelMean, PflSsl
from calibre.methods.self_supervised import build_objective
from calibre.models.network import Problem, feature_count
from calibre.ssl.labelled import LabelTerm
from calibre.tensors import Tensors, step_towards

PROTOTYPES = "prototypes.vectors"  # in the model, where prototypes are made at the server
FARTHEST = 1e20  # a raw divergence that training has long lost; delta^gamma stays a number


class Aggregation(DivergenceSettings):
    """How delta_c is measured, and what it does to the server's mean."""

    # w_c ~ n_c / delta_c^gamma; 0: FedAvg; -1: favour diverging clients
    gamma: Annotated[float, Field(ge=-10, le=10)] = 1.0
    server_rate: Annotated[float, Field(gt=0)] = 1.0  # eta_g
    ref_double: bool = False  # the published code's weights, which sum to 1/M


class Calibre(PflSsl):
    title: ClassVar[str] = "Calibre"
    paper: ClassVar[str] = "Chen, Su and Li, Calibre, ICDCS 2024"

    name: str = "calibre"
    labels: LabelTerm = LabelTerm(weight=1.0)
    prototypes: Regularizers = Regularizers()
    aggregation: Aggregation = Aggregation()

    @model_validator(mode="after")
    def _possible(self) -> "Calibre":
        if self.prototypes.h == "prediction" and not self.objective.predicts:
            raise UserError(
                f"method.prototypes.h = 'prediction': objective '{self.objective.name}' has no "
                "predictor; byol, simsiam and smog have one"
            )
        if self.prototypes.kmeans == "server" and self.exchange == "encoder":
            raise UserError(
                "method.prototypes.kmeans = 'server' sends prototypes, but method.exchange = "
                "'encoder' sends the encoder alone: set it to 'model'"
            )
        return self

    @property
    def label(self) -> str:
        analysis = " with true labels: analysis only" if self.prototypes.oracle_labels else ""
        anchored = " anchored by labels" if self.prototypes.kmeans == "labels" else ""
        return f"Calibre ({self.objective.title}){self._with_labels}{anchored}{analysis}"

    @property
    def uses_labels(self) -> bool:
        asked = self.prototypes.oracle_labels or self.prototypes.kmeans == "labels"
        return super().uses_labels or asked

    @property
    def one_mean(self) -> bool:
        return self.prototypes.kmeans != "server"

    @property
    def numbers(self) -> Mapping[str, Number]:
        farthest = 2.0 if self.aggregation.divergence == "unit" else FARTHEST
        return {"divergence": Number(0, farthest, unknown=True)}

    def build(self, problem: Problem) -> nn.Module:
        """The network of l_s, with alpha_p L_p + alpha_n L_n and beta l_c added to its loss."""
        objective = build_objective(self.objective, problem)
        if self.prototypes.alpha_p > 0 or self.prototypes.alpha_n > 0:
            features = feature_count(objective.encoder)
            objective = Calibrated(objective, self.prototypes, features)
        return self._labelled(objective, problem)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        update = super().local_update(server, personal, site)
        rate = self._divergence(site)
        told = {} if math.isnan(rate) else {"divergence": rate}
        return replace(update, numbers={"divergence": rate}, report={**update.report, **told})

    def _divergence(self, site: Site) -> float:
        """delta_c; unknown where it weighs nothing, or the encodings are not finite."""
        if self.aggregation.gamma == 0:
            return math.nan
        z = encode(site.network.get_submodule("encoder"), site.images, site.normalization)
        return divergence(z, self.aggregation, site.generator("divergence"))

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """theta <- theta + eta_g sum_c w_c (theta_c - theta),  w_c ~ n_c / delta_c^gamma."""
        settings = self.aggregation
        mean, rates, waiting, prototypes = ModelMean(), [], [], []
        total_samples, total_inverse = 0.0, 0.0

        def add(update: Update, rate: float) -> None:
            nonlocal total_samples, total_inverse
            share = weight(update.samples, rate, settings.gamma)
            mean.add(update, share)
            if PROTOTYPES in update.shared["model"]:
                prototypes.append(update.shared["model"][PROTOTYPES])
            total_samples += update.samples
            total_inverse += share / update.samples

        for update in updates:  # a stream: of those whose rate is known, none is held
            rate = update.numbers.get("divergence", math.nan)
            if settings.gamma == 0 or not math.isnan(rate):
                rates.append(rate)
                add(update, rate)
            else:
                waiting.append(update)
        median = statistics.median(rates) if rates else 1.0  # all unknown: FedAvg's weights
        for update in waiting:
            add(update, median)
        step = settings.server_rate
        if settings.ref_double:
            # the published code weights by (1/delta) / sum(1/delta) times n / sum(n) and does not
            # renormalise: a server step of about 1/M
            step *= mean.weight / (total_inverse * total_samples)
        model = step_towards(server.model, mean.result(server.model), step)
        if prototypes:
            model[PROTOTYPES] = common(prototypes)
        return server.next(model=model)


def common(prototypes: Sequence[Tensor]) -> Tensor:
    """K prototypes [K, D] of all clients' own, K of each: the centres of their clusters."""
    points, asked = torch.cat([*prototypes]), len(prototypes[0])
    found = kmeans(points, asked, torch.Generator().manual_seed(0)).centroids
    return found[torch.arange(asked) % len(found)]  # where there are fewer unlike ones

"""Trains one model of a table on scikit-learn's digits, five-fold, and writes its accuracy: python3 digits.py INDEX

The 1,797 images of 8 by 8 pixels come with scikit-learn. These models train on the CPU; what is shown is how tasks of an
array choose their own work and find the GPU that is theirs.
"""

import json
import os
import sys
import time

from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

MODELS = (
    [("svc", {"C": c, "gamma": g}) for c in (1, 10) for g in (0.0005, 0.001, 0.002)]
    + [("knn", {"n_neighbors": k}) for k in (1, 3, 5)]
    + [("forest", {"n_estimators": n, "random_state": 0}) for n in (50, 200)]
    + [("extra-trees", {"n_estimators": 200, "random_state": 0})]
    + [("mlp", {"hidden_layer_sizes": h, "max_iter": 400, "random_state": 0}) for h in ((32,), (64,))]
    + [("logistic", {"C": c, "max_iter": 2000}) for c in (0.1, 1.0)]
)
KINDS = {
    "svc": SVC,
    "knn": KNeighborsClassifier,
    "forest": RandomForestClassifier,
    "extra-trees": ExtraTreesClassifier,
    "mlp": lambda **words: make_pipeline(StandardScaler(), MLPClassifier(**words)),
    "logistic": lambda **words: make_pipeline(StandardScaler(), LogisticRegression(**words)),
}


def main(index):
    kind, words = MODELS[index]
    images, digits = load_digits(return_X_y=True)
    began = time.monotonic()
    scores = cross_val_score(KINDS[kind](**words), images, digits, cv=5)
    result = {
        "index": index,
        "model": kind,
        "words": words,
        "accuracy": scores.mean(),
        "train_secs": round(time.monotonic() - began, 3),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "gpus": [gpu for gpu in os.environ.get("GSUB_GPU_UUIDS", "").split(",") if gpu],
    }
    with open(f"digits-{index}.json", "w") as file:
        json.dump(result, file)
    print(f"{kind} {words}: accuracy {result['accuracy']:.4f} on {result['node']} with {result['gpus']}")


if __name__ == "__main__":
    assert len(MODELS) == 16
    main(int(sys.argv[1]))

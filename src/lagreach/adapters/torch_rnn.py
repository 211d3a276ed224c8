"""placeholder"""


def torch_views(model, sample):
    from lagreach.errors import UnsupportedError

    raise UnsupportedError("this model is not one that lagreach can take apart yet", got=type(model).__name__)

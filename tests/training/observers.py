"""An observer for tests of the training loop."""


class Silent:
    """Notes what it is told."""

    def __init__(self, after=None):
        self.after = after or (lambda progress: None)
        self.messages, self.validations, self.shares = [], [], []

    def on_step(self, progress, share, values):
        self.shares.append(share)
        self.after(progress)

    def on_validation(self, progress, validation, is_best):
        self.validations.append(validation)

    def on_message(self, message):
        self.messages.append(message)

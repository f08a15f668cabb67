"""Server: FedAvg, or the same FedAvg with weights by the noise that it estimates."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from eight_clients.task import accuracy, model
from hdpfl_flower import NoiseAware

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and print the accuracy of the last model."""
    strategy = FedAvg(fraction_evaluate=0.0)
    if context.run_config["weights"] == "noise-aware":
        strategy = NoiseAware(strategy)
    arrays = ArrayRecord(model().state_dict())
    result = strategy.start(grid, arrays, num_rounds=10)
    print(f"accuracy: {accuracy(result.arrays):.3f}")

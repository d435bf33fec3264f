// Data parallel training in C++: every rank has its own data, the gradients are averaged.
//
// The wheels of torch come without gloo's headers, so the ranks meet at the store that the launcher
// holds at MASTER_ADDR:MASTER_PORT, and sum through it.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    throw std::runtime_error(std::string(name) + " is not set: start this with a launcher");
  }
  return value;
}

// Everyone's tensor, summed in the order of the ranks; all ranks call it with the same `key`.
torch::Tensor all_reduce(
    c10d::TCPStore& store, const std::string& key, const torch::Tensor& mine, int rank, int world) {
  auto part = mine.contiguous();
  std::vector<uint8_t> bytes(part.nbytes());
  std::memcpy(bytes.data(), part.data_ptr(), bytes.size());
  store.set(key + "/" + std::to_string(rank), bytes);
  auto sum = torch::zeros_like(part);
  for (int other = 0; other < world; ++other) {
    auto theirs = store.get(key + "/" + std::to_string(other));
    sum += torch::from_blob(theirs.data(), part.sizes(), part.options());
  }
  return sum;
}

}  // namespace

int main() {
  const int rank = std::stoi(variable("RANK"));
  const int world = std::stoi(variable("WORLD_SIZE"));
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.isServer = rank == 0 && variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  c10d::TCPStore store(variable("MASTER_ADDR"), options);

  torch::manual_seed(0);
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(rank);
  for (int step = 0; step < 5; ++step) {
    auto batch = torch::randn({16, 4});
    optimizer.zero_grad();
    torch::mse_loss(model(batch), batch.sum(1, true)).backward();
    for (auto& parameter : model->named_parameters()) {
      auto key = std::to_string(step) + "/" + parameter.key();
      auto& gradient = parameter.value().mutable_grad();
      gradient.copy_(all_reduce(store, key, gradient, rank, world) / world);
    }
    optimizer.step();
    const char* victim = std::getenv("ACCIDENT");
    if (step == 2 && victim != nullptr && std::stoi(victim) == rank &&
        variable("TORCHELASTIC_RESTART_COUNT") == "0") {
      std::abort();
    }
  }

  torch::NoGradGuard no_grad;
  std::ostringstream said;  // one write, so that the lines of several ranks stay whole
  said.precision(9);
  auto total = model->weight.to(torch::kDouble).square().sum().item<double>();
  said << "rank " << rank << " of " << world << ": weights " << std::fixed << total << "\n";
  std::cout << said.str() << std::flush;
}

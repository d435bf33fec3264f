// Train a small CNN on handwritten digits in C++: ranks share each batch and average gradients.
//
//     sbatch sbatch/libtorch.sbatch
//
// The wheels of torch do not contain gloo's headers, so the ranks exchange gradients through the
// launcher's store at MASTER_ADDR:MASTER_PORT, which is fast enough for small models. Rank 0 saves a
// checkpoint at the end of every epoch; after a restart, the training resumes from it with any
// number of ranks. It reaches an accuracy above 0.95 on held-out digits.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kHeldOut = 297, kEpochs = 8, kBatch = 64;  // a batch is of all ranks together

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    throw std::runtime_error(std::string(name) + " is not set: start this with hpclaunch");
  }
  return value;
}

struct Digits {
  torch::Tensor images, labels;  // [n, 1, 8, 8] from 0 to 1, and [n]
};

// Return the digits in a fixed random order; a line has 64 pixels from 0 to 16 and the label.
Digits read(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> numbers;
  for (std::string number; std::getline(file, number, numbers.size() % 65 == 64 ? '\n' : ',');) {
    numbers.push_back(std::stof(number));
  }
  if (numbers.empty() || numbers.size() % 65 != 0) {
    throw std::runtime_error(path + " has no digits: use build/digits.csv, which CMake makes");
  }
  auto rows = torch::tensor(numbers).view({-1, 65});
  torch::manual_seed(0);
  rows = rows.index_select(0, torch::randperm(rows.size(0)));
  auto pixels = rows.narrow(1, 0, 64).contiguous();
  return {pixels.view({-1, 1, 8, 8}) / 16, rows.select(1, 64).to(torch::kLong)};
}

torch::nn::Sequential cnn() {
  using namespace torch::nn;
  return Sequential(
      Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2),
      Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(), MaxPool2d(2),
      Flatten(), Linear(32 * 2 * 2, 10));
}

// Sums tensors of all ranks, in the order of the ranks, so that all get the same bits.
class Ranks {
 public:
  Ranks() : rank(std::stoi(variable("RANK"))), world(std::stoi(variable("WORLD_SIZE"))) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
    options.isServer = rank == 0 && variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
    store_ = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
  }

  torch::Tensor sum(const torch::Tensor& mine) {
    auto part = mine.cpu().contiguous();
    std::vector<uint8_t> bytes(part.nbytes());
    std::memcpy(bytes.data(), part.data_ptr(), bytes.size());
    store_->set(key(calls_, rank), bytes);
    auto total = torch::zeros_like(part);
    for (int other = 0; other < world; ++other) {
      auto theirs = store_->get(key(calls_, other));  // waits for this key
      total += torch::from_blob(theirs.data(), part.sizes(), part.options());
    }
    // All ranks have begun this sum, so all have read the previous one.
    if (calls_ > 0) {
      store_->deleteKey(key(calls_ - 1, rank));
    }
    ++calls_;
    return total.to(mine.device());
  }

  const int rank, world;

 private:
  static std::string key(int64_t call, int rank) {
    return std::to_string(call) + "/" + std::to_string(rank);
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
  int64_t calls_ = 0;
};

// Write a temporary file and rename it, so that a file of this name is always complete.
void save(torch::serialize::OutputArchive& archive, const std::filesystem::path& path) {
  auto draft = path;
  draft.replace_extension(".tmp");
  archive.save_to(draft.string());
  const int file = open(draft.c_str(), O_RDONLY);
  if (file < 0 || fsync(file) != 0 || close(file) != 0) {
    throw std::runtime_error(draft.string() + " could not be saved");
  }
  std::filesystem::rename(draft, path);
}

void sum_gradients(torch::nn::Sequential& model, Ranks& ranks) {
  const auto parameters = model->parameters();
  std::vector<torch::Tensor> flat;
  std::vector<int64_t> sizes;
  for (const auto& parameter : parameters) {
    flat.push_back(parameter.grad().flatten());
    sizes.push_back(parameter.numel());
  }
  const auto sums = ranks.sum(torch::cat(flat)).split_with_sizes(sizes);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].grad().copy_(sums[i].view_as(parameters[i]));
  }
}

double accuracy(torch::nn::Sequential& model, const Digits& test) {
  torch::NoGradGuard no_grad;
  const auto right = model->forward(test.images).argmax(1) == test.labels;
  return right.to(torch::kDouble).mean().item<double>();
}

void train(const std::string& data, const std::filesystem::path& directory) {
  Ranks ranks;
  const bool first = ranks.rank == 0;
  torch::Device device(torch::kCPU);
  if (torch::cuda::is_available()) {
    device = torch::Device(torch::kCUDA, std::stoi(variable("LOCAL_RANK")));
  }
  const auto all = read(data);
  const auto images = all.images.to(device), labels = all.labels.to(device);
  const auto count = images.size(0) - kHeldOut;
  const Digits test{images.narrow(0, 0, kHeldOut), labels.narrow(0, 0, kHeldOut)};

  auto model = cnn();
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  int64_t begin = 0;
  if (const auto checkpoint = variable("HPCLAUNCH_CHECKPOINT"); !checkpoint.empty()) {
    torch::serialize::InputArchive archive, of_model, of_optimizer;
    archive.load_from(checkpoint, device);
    archive.read("model", of_model);
    archive.read("optimizer", of_optimizer);
    model->load(of_model);
    optimizer.load(of_optimizer);
    c10::IValue epoch;
    archive.read("epoch", epoch);
    begin = epoch.toInt() + 1;
    if (first) {
      std::cout << "resuming after epoch " << epoch.toInt() << std::endl;
    }
  }

  std::filesystem::create_directories(directory);
  std::cout << std::fixed << std::setprecision(4);
  for (auto epoch = begin; epoch < kEpochs; ++epoch) {
    torch::manual_seed(epoch);  // the same order with and without a restart
    const auto order = (torch::randperm(count) + kHeldOut).to(device);
    for (const auto& batch : order.split(kBatch)) {
      const auto share = batch.slice(0, ranks.rank, c10::nullopt, ranks.world);
      optimizer.zero_grad();
      const auto logits = model->forward(images.index_select(0, share));
      const auto likely = torch::log_softmax(logits, 1);
      const auto loss = torch::nll_loss(
          likely, labels.index_select(0, share), /*weight=*/{}, torch::Reduction::Sum);
      (loss / batch.size(0)).backward();
      sum_gradients(model, ranks);
      optimizer.step();
    }
    if (first) {
      std::cout << "epoch " << epoch << ": accuracy " << accuracy(model, test) << std::endl;
      torch::serialize::OutputArchive archive, of_model, of_optimizer;
      model->save(of_model);
      optimizer.save(of_optimizer);
      archive.write("model", of_model);
      archive.write("optimizer", of_optimizer);
      archive.write("epoch", c10::IValue(epoch));
      save(archive, directory / ("epoch-" + std::to_string(epoch) + ".pt"));
    }
    ranks.sum(torch::zeros(1));  // no rank begins an epoch before the previous one is saved
  }
  if (first) {
    std::cout << "accuracy " << accuracy(model, test) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: digits DIGITS.CSV CHECKPOINT_DIRECTORY" << std::endl;
    return 2;
  }
  try {
    train(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << std::endl;
    return 1;
  }
}

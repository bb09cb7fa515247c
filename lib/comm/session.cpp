// SPDX-License-Identifier: Apache-2.0
#include "deltaport/comm/session.hpp"

#include <Kokkos_Core.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>

#include "comm/mpi_library.hpp"
#include "deltaport/core/blas.hpp"

namespace deltaport {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

/// The texts of all ranks of `communicator`, on each of them. The texts are single lines.
std::vector<std::string> all_gather(const Communicator& communicator, const std::string& text) {
  std::istringstream lines(communicator.broadcast(joined(communicator.gather(text))));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  return all;
}

template <class Item>
std::vector<Item> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<Item> items;
  for (Item item; in >> item;) items.push_back(item);
  return items;
}

int choose_threads(const Communicator& node) {
  std::string mine;
  for (const int core : cores_of(allowed_cpus())) mine += std::to_string(core) + ' ';
  std::vector<std::vector<int>> cores;
  for (const std::string& line : all_gather(node, mine)) cores.push_back(words_of<int>(line));
  return threads_for_rank(cores, node.rank(), cgroup_cpu_limit());
}

DevicePlacement choose_devices(const Communicator& node) {
  std::string mine;
  for (const DeviceInfo& device : visible_devices()) mine += device.uuid + ' ';
  std::vector<std::vector<std::string>> visible;
  for (const std::string& line : all_gather(node, mine)) visible.push_back(words_of<std::string>(line));
  return place_devices(visible);
}

void start_kokkos(int threads, int device) {
  Kokkos::InitializationSettings settings;
  // Kokkos would warn about OMP_PROC_BIND on every rank; the summary line says what matters.
  settings.set_disable_warnings(true);
  if (std::getenv("OMP_NUM_THREADS") == nullptr && std::getenv("KOKKOS_NUM_THREADS") == nullptr)
    settings.set_num_threads(threads);
  if (device >= 0) settings.set_device_id(device);
  Kokkos::initialize(settings);
}

void print_error(const std::string& message) {
  std::fprintf(stderr, "deltaport: error: %s\n", message.c_str());
}

[[noreturn]] void wait_for_the_speaker(const Communicator& world, int code) {
  // MPI_Abort of the speaking rank ends this process; if the speaker is gone, end here.
  std::this_thread::sleep_for(std::chrono::seconds(10));
  world.abort("stopped after another rank failed", static_cast<ExitCode>(code));
}

}  // namespace

struct Session::Impl {
  bool owns_mpi;
  bool owns_kokkos = false;
  int exceptions = std::uncaught_exceptions();  // in flight when the session began
  double grace_seconds = 2.0;
  std::unique_ptr<comm::FailureChannel> failures;
  Communicator world;
  int threads = 1;
  int device = -1;
  std::string summary;
  std::string warning;

  Impl(int& argc, char**& argv) : owns_mpi(comm::start_mpi(argc, argv)) {}
  void start(const SessionOptions& options);
  void describe();
  ~Impl() {
    if (owns_kokkos) Kokkos::finalize();
    failures.reset();
    world = Communicator();
    if (owns_mpi) comm::stop_mpi();
  }
};

void Session::Impl::start(const SessionOptions& options) {
  failures = comm::open_failure_channel();
  world = Communicator::world();
  const std::string mismatch =
      launch_mismatch(world.size(), [](const char* name) { return std::getenv(name); });
  DELTAPORT_VALIDATE(mismatch.empty(), CommError, mismatch);
  const Communicator node = world.node();
  const DevicePlacement devices = choose_devices(node);
  device = devices.device_of_rank[static_cast<std::size_t>(node.rank())];
#ifdef KOKKOS_ENABLE_CUDA
  world.check_all(device < 0 ? "sees no CUDA device: check CUDA_VISIBLE_DEVICES and nvidia-smi" : "",
                  ExitCode::failure);
#endif
  warning = world.broadcast(devices.warning);
  owns_kokkos = !Kokkos::is_initialized();
  if (owns_kokkos) start_kokkos(choose_threads(node), device);
  threads = Kokkos::DefaultHostExecutionSpace().concurrency();
  set_blas_threads(threads);
  describe();
  if (options.summary == SummaryLine::yes && world.is_root()) {
    std::fprintf(stderr, "deltaport: %s\n", summary.c_str());
    if (!warning.empty()) std::fprintf(stderr, "deltaport: warning: %s\n", warning.c_str());
    if (const std::string advice = blas_advice(); !advice.empty())
      std::fprintf(stderr, "deltaport: warning: %s\n", advice.c_str());
  }
}

void Session::Impl::describe() {
  const int nodes = static_cast<int>(world.sum<std::int64_t>(world.local_rank() == 0 ? 1 : 0));
  const auto fewest = world.min<std::int64_t>(threads), most = world.max<std::int64_t>(threads);
  summary = concat(world.size(), world.size() == 1 ? " rank" : " ranks");
  if (nodes > 1) summary += concat(" on ", nodes, " nodes");
  summary += concat(", ", fewest, fewest == most ? "" : concat("-", most), most == 1 ? " thread" : " threads",
                    " each, ", Kokkos::DefaultExecutionSpace::name());
  summary = world.broadcast(summary);
}

Session::Session(int& argc, char**& argv, const SessionOptions& options)
    : Session(std::make_unique<Impl>(argc, argv)) {
  impl_->start(options);
}
Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  std::fflush(
      nullptr);  // a launcher may end this process as soon as another rank has left with an error code
  if (std::uncaught_exceptions() > impl_->exceptions && impl_->world.size() > 1)
    impl_->world.abort("stopped by an exception");
}

const Communicator& Session::world() const {
  return impl_->world;
}
int Session::threads() const {
  return impl_->threads;
}
int Session::device() const {
  return impl_->device;
}
const std::string& Session::summary() const {
  return impl_->summary;
}
const std::string& Session::placement_warning() const {
  return impl_->warning;
}

int Session::conclude_failure(const std::string& message, ExitCode code) {
  const int number = static_cast<int>(code);
  switch (impl_->failures->agree(impl_->grace_seconds)) {
    case comm::FailureRole::collective:
      if (impl_->world.is_root()) print_error(message);
      return number;
    case comm::FailureRole::speaker:
      impl_->world.abort(message, code);
    default:
      wait_for_the_speaker(impl_->world, number);
  }
}

// Messages are printed while the session stands: once MPI has ended, the launcher may end this process.
int Session::run(const SessionOptions& options, const std::function<int(Session&)>& body) {
  try {
    impl_->grace_seconds = options.failure_grace_seconds;
    impl_->start(options);
    return body(*this);
  } catch (const CollectiveError& e) {
    if (e.speaks()) print_error(e.what());
    return static_cast<int>(e.exit_code());
  } catch (const Error& e) {
    return conclude_failure(e.what(), e.exit_code());
  } catch (const std::exception& e) {
    return conclude_failure(e.what(), ExitCode::failure);
  }
}

int run_session(int& argc, char**& argv, const SessionOptions& options,
                const std::function<int(Session&)>& body) {
  Session session(std::make_unique<Session::Impl>(argc, argv));
  return session.run(options, body);
}

}  // namespace deltaport

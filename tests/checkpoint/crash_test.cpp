// SPDX-License-Identifier: Apache-2.0
// A save that dies, or meets a full disk, at each of its operations on the file system.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "checkpoint/publish.hpp"
#include "checkpoint/temp_folder.hpp"

namespace deltaport {
namespace {

using namespace checkpoint;
using files::Operation;
using test::TempFolder;

/// Removes the hook at the end of a test.
struct HookScope {
  explicit HookScope(files::Hook hook) { files::set_hook(std::move(hook)); }
  ~HookScope() { files::set_hook({}); }
};

/// A small checkpoint of one rank whose tensor holds the step.
Contents contents_of(std::int64_t step) {
  Contents contents;
  contents.manifest.step = step;
  contents.manifest.tensors["x"] = {FileDtype::i64, {2}, {{"model-00001-of-00001.safetensors", 0, 2}}};
  contents.texts = {{state_name, "{}"}, {config_name, "version: 1\n"}};
  contents.shard_bytes = 16;
  contents.write_shards = [step](const Path& folder) {
    const std::vector<std::int64_t> x = {step, -step};
    SafetensorsWriter writer;
    writer.add("x", Shape{2}, x);
    const std::string name = "model-00001-of-00001.safetensors";
    return std::map<std::string, FileDigest>{{name, writer.write(folder / name)}};
  };
  return contents;
}

SavedCheckpoint save(const Path& dir, std::int64_t step, const Path& loaded_from = {}) {
  return publish(Communicator(), dir, contents_of(step), RetentionPolicy{2, loaded_from});
}

/// The step of the newest usable checkpoint, every file of which must hash right.
std::int64_t newest(const Path& dir) {
  const auto latest = find_latest(dir);
  if (!latest) return -1;
  const Manifest manifest = read_manifest(*latest);
  for (const auto& [name, digest] : manifest.files) verify_file(*latest, name, digest, Verify::hashes);
  const SafetensorsReader reader(*latest / "model-00001-of-00001.safetensors");
  EXPECT_EQ(reader.read<std::int64_t>("x")[0], manifest.step);
  return manifest.step;
}

std::int64_t usable_count(const Path& dir) {
  std::int64_t count = 0;
  for (const StepFolder& folder : committed_folders(dir)) count += is_usable(folder.path);
  return count;
}

/// Runs `action` in a child that kills itself before operation `at`; true when the child was killed.
template <class F>
bool killed_at(int at, F&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    files::set_hook([&count, at](Operation, const Path&) {
      if (count++ == at) ::kill(::getpid(), SIGKILL);
      return 0;
    });
    action();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

TEST(Crash, KilledAtAnyOperationLeavesTheLastGoodCheckpoint) {
  int at = 0;
  std::set<std::int64_t> seen;
  for (bool killed = true; killed; ++at) {
    TempFolder folder;
    const Path dir = folder / "checkpoints";
    save(dir, 100);
    save(dir, 200);
    killed = killed_at(at, [&] { save(dir, 300); });
    const std::int64_t step = newest(dir);
    seen.insert(step);
    EXPECT_TRUE(step == 200 || step == 300) << "operation " << at;
    EXPECT_GE(usable_count(dir), 2) << "operation " << at;
    // What is left over does not disturb the next save.
    save(dir, 300);
    EXPECT_EQ(newest(dir), 300) << "operation " << at;
    EXPECT_EQ(usable_count(dir), 2) << "operation " << at;
    EXPECT_EQ(test::read_file(dir / latest_name), "step-00000300\n");
  }
  EXPECT_EQ(seen, (std::set<std::int64_t>{200, 300}));
  EXPECT_GT(at, 25);
}

TEST(Crash, KilledDuringTheFirstSaveLeavesNothingOrAll) {
  for (int at = 0;; ++at) {
    TempFolder folder;
    const Path dir = folder / "a/b";
    const bool killed = killed_at(at, [&] { save(dir, 7); });
    const std::int64_t step = newest(dir);
    EXPECT_TRUE(step == -1 || step == 7) << "operation " << at;
    if (!killed) {
      EXPECT_EQ(step, 7);
      break;
    }
  }
}

TEST(Crash, KilledWhileReplacingTheSameStepKeepsTheOthers) {
  for (int at = 0;; ++at) {
    TempFolder folder;
    save(folder.path(), 100);
    save(folder.path(), 200);
    const bool killed = killed_at(at, [&] { save(folder.path(), 200); });
    EXPECT_GE(newest(folder.path()), 100) << "operation " << at;
    save(folder.path(), 200);
    EXPECT_EQ(newest(folder.path()), 200) << "operation " << at;
    if (!killed) break;
  }
}

/// Runs a third save with a hook; checks that it fails cleanly or succeeds. Returns whether it failed.
bool fails_cleanly(const files::Hook& hook, const std::string& message) {
  TempFolder folder;
  save(folder.path(), 100);
  save(folder.path(), 200);
  bool failed = false;
  {
    HookScope scope(hook);
    try {
      save(folder.path(), 300);
    } catch (const Error& e) {
      failed = true;
      EXPECT_EQ(e.exit_code(), ExitCode::checkpoint);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }
  const std::int64_t step = newest(folder.path());
  EXPECT_TRUE(step == 300 || (failed && step == 200));
  EXPECT_GE(usable_count(folder.path()), 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000300.tmp"));
  return failed;
}

TEST(Crash, AnyFailingOperationIsAnErrorThatLeavesTheOldCheckpoint) {
  int failures = 0;
  int total = 0;
  for (int at = 0, done = 0; !done; ++at) {
    int count = 0;
    failures +=
        fails_cleanly([&](Operation, const Path&) { return count++ == at ? ENOSPC : 0; }, "No space left");
    done = count <= at;
    ++total;
  }
  EXPECT_GT(failures, 20);
  EXPECT_LT(failures, total);  // late ones hit the clean-up, which only warns
}

TEST(Crash, DiskThatStaysFullIsAnErrorThatLeavesTheOldCheckpoint) {
  bool failed = true;
  for (int at = 0; failed; ++at) {
    int count = 0;
    failed = fails_cleanly(
        [&](Operation operation, const Path&) {
          if (operation != Operation::write && operation != Operation::create) return 0;
          return count++ >= at ? ENOSPC : 0;
        },
        "No space left");
    if (!failed) {
      EXPECT_GT(at, 8);
    }
  }
}

TEST(Crash, TooLittleSpaceIsFoundBeforeWriting) {
  TempFolder folder;
  Contents contents = contents_of(1);
  contents.shard_bytes = std::uint64_t{1} << 60;
  bool wrote = false;
  HookScope scope([&](Operation operation, const Path&) {
    wrote = wrote || operation == Operation::write;
    return 0;
  });
  const std::string message =
      test::message_of<Error>([&] { publish(Communicator(), folder.path(), contents, RetentionPolicy{}); });
  EXPECT_NE(message.find("not enough space"), std::string::npos) << message;
  EXPECT_FALSE(wrote);
}

/// Everything durable before it is relied on: flushed before renamed, COMMIT after all else, removal last.
TEST(Crash, OperationsComeInTheOrderThatPowerLossNeeds) {
  TempFolder folder;
  save(folder.path(), 100);
  save(folder.path(), 200);
  std::vector<std::pair<Operation, std::string>> log;
  {
    HookScope scope([&](Operation operation, const Path& path) {
      log.emplace_back(operation, std::filesystem::relative(path, folder.path()).string());
      return 0;
    });
    save(folder.path(), 300);
  }
  const auto at = [&](Operation operation, const std::string& path) {
    for (std::size_t i = 0; i < log.size(); ++i)
      if (log[i] == std::pair(operation, path)) return i;
    ADD_FAILURE() << path;
    return log.size();
  };
  const std::string tmp = "step-00000300.tmp";
  const std::size_t commit = at(Operation::create, tmp + "/COMMIT.part");
  for (const char* name :
       {"/model-00001-of-00001.safetensors", "/state.json", "/config/run.yaml", "/manifest.json"}) {
    const std::string part = tmp + name + ".part";
    EXPECT_LT(at(Operation::write, part), at(Operation::sync_file, part));
    EXPECT_LT(at(Operation::sync_file, part), at(Operation::rename, part));
    EXPECT_LT(at(Operation::rename, part), commit);
  }
  EXPECT_EQ(log[commit - 1], std::pair(Operation::sync_directory, tmp));
  EXPECT_LT(at(Operation::sync_file, tmp + "/COMMIT.part"), at(Operation::rename, tmp));
  EXPECT_EQ(log[at(Operation::rename, tmp) - 1], std::pair(Operation::sync_directory, tmp));
  EXPECT_EQ(log[at(Operation::rename, tmp) + 1], std::pair(Operation::sync_directory, std::string(".")));
  EXPECT_LT(at(Operation::rename, tmp) + 1, at(Operation::create, "latest.part"));
  EXPECT_LT(at(Operation::sync_file, "latest.part"), at(Operation::rename, "latest.part"));
  const std::size_t first_removal = at(Operation::remove_file, "step-00000100/COMMIT");
  EXPECT_LT(at(Operation::rename, "latest.part"), first_removal);
  for (std::size_t i = 0; i < first_removal; ++i) EXPECT_NE(log[i].first, Operation::remove_file);
  EXPECT_EQ(log[first_removal + 1], std::pair(Operation::sync_directory, std::string("step-00000100")));
}

TEST(Retention, KeepsTheNewestTheLoadedOneAndThoseOfTheFuture) {
  TempFolder folder;
  for (const std::int64_t step : {100, 200, 300, 900})
    publish(Communicator(), folder.path(), contents_of(step), {9, {}});
  save(folder.path(), 400, folder / "step-00000100");
  std::vector<std::int64_t> steps;
  for (const StepFolder& f : committed_folders(folder.path())) steps.push_back(f.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{900, 400, 300, 100}));
}

TEST(Retention, DamagedCheckpointsDoNotCountAsKept) {
  TempFolder folder;
  for (const std::int64_t step : {100, 200, 300})
    publish(Communicator(), folder.path(), contents_of(step), {9, {}});
  std::filesystem::remove(folder / "step-00000300/state.json");
  publish(Communicator(), folder.path(), contents_of(400), {0, {}});  // fewer than two count as two
  EXPECT_TRUE(std::filesystem::exists(folder / "step-00000200/COMMIT"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000100"));
  EXPECT_EQ(usable_count(folder.path()), 2);
}

TEST(Retention, SavingTheStepLoadedFromDoesNothing) {
  TempFolder folder;
  save(folder.path(), 100);
  int operations = 0;
  HookScope scope([&](Operation, const Path&) {
    ++operations;
    return 0;
  });
  save(folder.path(), 100, folder / "step-00000100");
  EXPECT_EQ(operations, 0);
}

TEST(Folder, NamesAndLeftovers) {
  EXPECT_EQ(step_folder_name(1000), "step-00001000");
  EXPECT_EQ(step_folder_name(123456789012), "step-123456789012");
  EXPECT_EQ(step_of("step-00001000"), 1000);
  EXPECT_EQ(step_of("step-123456789012"), 123456789012);
  EXPECT_EQ(step_of("step-00001000.tmp", ".tmp"), 1000);
  for (const char* bad :
       {"step-", "step-1", "step-0000100x", "step--0000001", "step-00001000.tmp", "latest", ""})
    EXPECT_FALSE(step_of(bad).has_value()) << bad;
  TempFolder folder;
  save(folder.path(), 200);
  for (const char* name :
       {"step-00000100.tmp", "step-00000100.replaced.tmp", "step-00000150", "step-00000300.tmp", "mine.tmp"})
    std::filesystem::create_directory(folder / name);
  EXPECT_EQ(leftovers(folder.path(), 200),
            (std::vector<Path>{folder / "step-00000100.replaced.tmp", folder / "step-00000100.tmp",
                               folder / "step-00000150"}));
}

}  // namespace
}  // namespace deltaport

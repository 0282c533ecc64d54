"""Before bayespg is imported: shapes are checked at run time, and hypothesis repeats itself."""

import gc
import importlib.metadata
import os
import signal

os.environ.setdefault("NPROC", "8")  # before JAX starts; see bayespg._support.threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores
# XLA would spend more time on optimising the programs here than they take. The processes that tests
# start inherit this; JAX_DISABLE_MOST_OPTIMIZATIONS=0 XLA_FLAGS="" tests what users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")  # nothing is left in the user's folder

import hypothesis
import jax
import jaxtyping
import pytest
from oracle import Problem, problem

jaxtyping.install_import_hook("bayespg", "typecheck.check")

if "XLA_FLAGS" not in os.environ and importlib.metadata.version("jaxlib").startswith("0.10."):
    # XLA's older emitters compile in less than half the time, and large programs faster in one
    # piece than in 32; jaxlib aborts on a flag that it does not know.
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background ignores Ctrl-C, and the processes that tests
    # start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "bayespg", deadline=None, derandomize=True, max_examples=15, database=None
)
hypothesis.settings.load_profile("bayespg")


SLOW = (
    "test_agents.py::test_killed_at_any_moment",
    "test_release.py::test_the_wheel_works_in_a_clean_environment",
    "test_agents.py::test_three_trainings_at_once",
    "test_actor_critic.py::test_40500_parameters_have_a_posterior",
    "test_docs.py::test_code_of_a_page_runs[docs/partial-observation.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/how-to/environment.md]",
    "test_jobs.py::test_a_sweep_trains_what_is_missing_and_compares",
    "test_jobs.py::test_seeds_in_processes_are_those_of_one_and_a_folder_resumes",
    "test_memory.py::test_bpg_teaches_the_t_maze",
    "test_memory_agents.py::test_bpg_learns_what_no_policy_without_memory_can",
    "test_reproduce.py::test_gradient_experiments_report_every_curve_with_errors",
    "test_reproduce.py::test_learning_experiments_report_every_curve_with_errors[random-walk-learning]",
    "test_reproduce.py::test_learning_experiments_report_every_curve_with_errors[mountain-car]",
    "test_reproduce.py::test_search_reports",
    "test_reproduce.py::test_sparsification_reports",
    "test_reproduce.py::test_the_random_walk_s_gradient_reports",
    "test_training.py::test_runs_on_eight_devices_are_those_of_one",
    "test_workers.py::test_eight_workers_learn_what_one_process_learns",
    "test_workers.py::test_nothing_is_left_behind_by_a_script_without_a_guard[9]",
    "test_workers.py::test_on_ray_the_numbers_are_the_same_and_a_lost_actor_is_replaced",
    "test_together.py::test_the_processes_end_with_the_command[9]",
    "test_classic.py::test_a_policy_earns_what_it_earns_in_gymnasium[MountainCarContinuous-v0]",
    "test_cli_training.py::test_a_finished_run_is_trained_for_longer",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/actor-critic.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/bpg.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/fisher.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/how-to/estimator.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/how-to/policy.md]",
    "agree_with_a_million_paths[lqr, drifting]",
    "agree_with_a_million_paths[lqr, kappa]",
    "test_estimators.py::test_noise_on_rewards_counts_the_steps_of_each_path[Model1]",
    "test_memory.py::test_a_recurrent_policy_of_real_actions_sees_windows_of_noise",
    "test_memory.py::test_gradient_and_information_of_paths_drawn_are_those_of_enumeration[recurrent]",
    "test_memory_agents.py::test_saved_loaded_and_resumed_it_goes_on_exactly[jax]",
    "test_networks.py::test_draws_from_the_joint_posterior_have_its_covariance",
    "test_partial_observation.py::test_bpg_learns_from_a_window_of_noisy_observations",
    "test_random_walk.py::test_exact_answers_agree_with_many_rollouts[paper]",
    "test_reproduce.py::test_learning_and_tuning_run_every_method_from_the_same_start",
    "test_rest_of_the_paper.py::test_derivatives_of_scores_are_those_of_the_paths_likelihood",
    "test_together.py::test_ctrl_c_while_modules_are_imported_is_an_interrupt_like_any_other[child-jax]",
    "test_together.py::test_the_processes_end_with_the_command[2]",
    "test_workers.py::test_what_goes_wrong_every_time_is_one_sentence",
    "test_agents.py::test_learning_can_end_with_the_best_policy",
    "test_classic.py::test_a_policy_earns_what_it_earns_in_gymnasium[Acrobot-v1]",
    "test_classic.py::test_a_policy_earns_what_it_earns_in_gymnasium[Pendulum-v1]",
    "test_classic.py::test_a_policy_earns_what_it_earns_in_gymnasium[MountainCar-v0]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/monte-carlo.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/how-to/scores.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/more.md]",
    "agree_with_a_million_paths[bandit]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[bac-returns]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[rebase]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[gae]",
    "near_nominal_where_fisher_is_singular[of_outer_products-400]",
    "names_its_stage[options2-",
    "names_its_stage[options4-",
    "test_partial_observation.py::test_the_exact_return_over_a_window_is_that_of_paths_drawn",
    "have_more_evidence_than_any_nearby[0.8]",
    "test_learner.py::test_returns_that_are_all_equal_make_no_step[model2]",
    "test_vector.py::test_an_agent_learns_and_goes_on_exactly",
    "test_gaussian_integrals_match_numerical_integration[1]",
    "the_damping_of_a_metric_is_a_share_of_the_mean_eigenvalue[choice]",
    "test_estimators.py::test_a_sparse_policy_gets_the_answers_of_the_same_policy_written_densely",
    "test_memory_agents.py::test_real_actions_reach_gymnasium[normal]",
    "test_memory_agents.py::test_every_estimator_of_paths_takes_sound_steps[model1-Maze-controller]",
    "test_memory_agents.py::test_every_estimator_of_paths_takes_sound_steps[gpomdp-environment0-controller]",
    "test_fisher.py::test_with_actions_integrated_out_the_walk_s_matrix_of_steps_is_unbiased",
    "test_partial_observation.py::test_the_exact_memoryless_return_is_that_of_paths_drawn",
    "test_agents.py::test_observations_in_jax_are_normalised_where_asked",
    "test_classic.py::test_an_agent_changes_its_policy_and_acts_within_bounds",
    "test_docs.py::test_code_of_a_page_runs[docs/guides/deciding.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/search.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/sparsification.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/gptd.md]",
    "test_docs.py::test_code_of_a_page_runs[docs/algorithms/evidence.md]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[fitted]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[mc-baseline]",
    "test_agents.py::test_every_estimator_by_name_takes_sound_steps[mc]",
    "test_agents.py::test_every_update_by_name_changes_the_policy[sgd]",
    "test_agents.py::test_strange_rewards_bring_no_nan[model2-rewards of 1e8]",
    "test_memory_agents.py::test_every_estimator_of_paths_takes_sound_steps[mc-environment2-controller]",
    "test_memory_agents.py::test_every_estimator_of_paths_takes_sound_steps[mc-baseline-environment3-controller]",
    "test_memory_agents.py::test_every_estimator_of_paths_takes_sound_steps[model1-environment5-controller]",
    "test_memory_agents.py::test_every_update_moves_a_policy_with_memory[adam]",
    "test_memory_agents.py::test_every_update_moves_a_policy_with_memory[sgd]",
    "test_memory_agents.py::test_every_episode_has_a_memory_of_its_own[recurrent-three]",
    "test_networks.py::test_the_joint_mean_is_that_of_the_dense_posterior[normals]",
    "test_networks.py::test_with_a_metric_of_recent_states_mean_and_covariance_are_those_of_dense_algebra[normals]",
    "test_networks.py::test_what_other_episodes_confirm_is_the_same_as_written_out[normals]",
    "test_networks.py::test_written_out_and_by_products_the_posterior_is_the_same[normals]",
    "test_networks.py::test_the_influence_of_an_episode_is_that_of_leaving_it_out_to_first_order[normals]",
    "agree_with_a_million_paths[noisy bandit]",
    "test_learner.py::test_paths_in_jax_are_drawn_in_the_precision_of_learning[gpomdp",
    "test_learner.py::test_units_of_the_rewards_do_not_matter[gpomdp]",
    "test_learner.py::test_steps_are_not_led_into_the_null_space[model1-plain]",
    "test_reproduce.py::test_optimisation_experiments_report_every_curve_with_errors[lqr-fisher]",
    "test_reproduce.py::test_optimisation_experiments_report_every_curve_with_errors[lqr-variance]",
    "test_vector.py::test_paths_are_those_of_single_environments[Pendulum-v1-True-AutoresetMode.SAME_STEP]",
    "test_vector.py::test_paths_are_those_of_single_environments[Pendulum-v1-True-AutoresetMode.DISABLED]",
    "variances_chosen_and_no_others_nearby_have_more_evidence[True]",
    "test_memory.py::test_a_path_s_score_is_the_difference_quotient_of_its_log_likelihood[recurrent]",
    "test_memory.py::test_estimators_of_paths_take_policies_with_memory[recurrent]",
    "test_line_search.py::test_lqr_is_learned[REINFORCE]",
    "test_line_search.py::test_lqr_is_learned[REINFORCE, natural]",
    "near_nominal_where_fisher_is_singular[of_actions_integrated_out-400]",
    "near_nominal_where_fisher_is_singular[of_outer_products-100]",
    "test_classic.py::test_an_agent_draws_the_same_by_name_and_by_object[Acrobot-v1]",
    "test_classic.py::test_an_agent_draws_the_same_by_name_and_by_object[MountainCar-v0]",
    "test_classic.py::test_an_agent_draws_the_same_by_name_and_by_object[MountainCarContinuous-v0]",
    "test_actor_critic.py::test_a_trace_on_plain_arrays_is_the_traced_one[dual-0.8]",
    "test_actor_critic.py::test_a_trace_on_plain_arrays_is_the_traced_one[weight-0.0]",
    "have_more_evidence_than_any_nearby[0.0]",
    "test_gptd.py::test_online_reports_what_the_batch_reports[8]",
    "test_masks.py::test_an_agent_learns_with_masks",
)
"""Tests of several seconds that repeat, at a larger scale or for another member, what quicker ones
show: `make test-all` runs them too."""


def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker("slow")


def pytest_collection_finish():
    """What was collected stays until the end, so the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture
def batch() -> Problem:
    """Eight paths, two parameters."""
    return problem(8, 2)


@pytest.fixture
def wide() -> Problem:
    """Fewer paths than parameters."""
    return problem(3, 4)


@pytest.fixture
def x64():
    """JAX in float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimised():
    """For a test whose programs run longer than they compile."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

/* Swimmer-v5 of Gymnasium: three rods in a plane, in a fluid, by the equations that MuJoCo
   integrates (inertia-box fluid forces, soft limits of joints, Runge-Kutta of fourth order).
   q = (x, y, angle, two joints), v = its derivative. benchmarks/swimmer.py compares both. */
#include <math.h>
#include <string.h>

enum { N = 5, BODIES = 3, JOINTS = 2 };
static const double PI = 3.14159265358979323846, H = 0.01;
static const double DENSITY = 4000, VISCOSITY = 0.1, ARMATURE = 0.1, GEAR = 150;
static const double INVERSE_WEIGHT[JOINTS] = {0.38529334162134676, 0.3933336741383495}; /* of joints, at rest */
/* Centres of mass are (x, y) + sum_j PLACE[k][j] u(angle_j). */
static const double PLACE[BODIES][BODIES] = {{1, 0, 0}, {0.5, -0.5, 0}, {0.5, -1, -0.5}};

typedef struct { double mass, across, along; } Rod; /* and its moments of inertia */

static void solve(double A[N][N], const double *b, double *x) { /* Cholesky */
    double L[N][N], z[N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++) {
            double s = A[i][j];
            for (int k = 0; k < j; k++) s -= L[i][k] * L[j][k];
            L[i][j] = i == j ? sqrt(s) : s / L[j][j];
        }
    for (int i = 0; i < N; i++) {
        z[i] = b[i];
        for (int k = 0; k < i; k++) z[i] -= L[i][k] * z[k];
        z[i] /= L[i][i];
    }
    for (int i = N - 1; i >= 0; i--) {
        x[i] = z[i];
        for (int k = i + 1; k < N; k++) x[i] -= L[k][i] * x[k];
        x[i] /= L[i][i];
    }
}

static void acceleration(const Rod *rod, const double *q, const double *v, const double *u,
                         double *a) {
    double M[N][N] = {{0}}, f[N] = {0}, c[BODIES], s[BODIES], w[BODIES], angle = 0, turn = 0;
    for (int j = 0; j < BODIES; j++) {
        angle += q[2 + j], turn += v[2 + j];
        c[j] = cos(angle), s[j] = sin(angle), w[j] = turn;
    }
    for (int i = 0; i < N; i++) M[i][i] = ARMATURE;
    /* The box of the same moments of inertia, and the fluid's forces on it. */
    double wide = sqrt(6 * rod->along / rod->mass);
    double length = sqrt(6 * (2 * rod->across - rod->along) / rod->mass);
    double size = (2 * wide + length) / 3;
    double drag = 3 * PI * size * VISCOSITY, twist = PI * pow(size, 3) * VISCOSITY;
    double front = 0.5 * DENSITY * wide * wide, side = 0.5 * DENSITY * wide * length;
    double spin = DENSITY * wide * (pow(length, 4) + pow(wide, 4)) / 64;
    for (int k = 0; k < BODIES; k++) {
        double J[2][N] = {{1, 0}, {0, 1}}, W[N] = {0, 0, 1, k >= 1, k >= 2};
        double ax = 0, ay = 0, vx = 0, vy = 0, dx = 0, dy = 0;
        for (int j = BODIES - 1; j >= 0; j--) {
            double r = PLACE[k][j];
            dx -= r * s[j], dy += r * c[j];
            J[0][2 + j] = dx, J[1][2 + j] = dy;
            ax -= r * c[j] * w[j] * w[j], ay -= r * s[j] * w[j] * w[j];
        }
        for (int i = 0; i < N; i++) vx += J[0][i] * v[i], vy += J[1][i] * v[i];
        double va = vx * c[k] + vy * s[k], vp = vy * c[k] - vx * s[k];
        double fa = -(drag + front * fabs(va)) * va, fp = -(drag + side * fabs(vp)) * vp;
        double fx = fa * c[k] - fp * s[k] - rod->mass * ax;
        double fy = fa * s[k] + fp * c[k] - rod->mass * ay;
        double torque = -(twist + spin * fabs(w[k])) * w[k];
        for (int i = 0; i < N; i++) {
            f[i] += J[0][i] * fx + J[1][i] * fy + W[i] * torque;
            for (int j = 0; j < N; j++)
                M[i][j] += rod->mass * (J[0][i] * J[0][j] + J[1][i] * J[1][j])
                           + rod->across * W[i] * W[j];
        }
    }
    for (int j = 0; j < JOINTS; j++) f[3 + j] += GEAR * u[j];
    solve(M, f, a);
    /* Beyond 100 degrees a joint is pushed back, if it does not come back fast enough. */
    double limit = 100 * PI / 180, most = 0.95, least = 0.9, time = 0.02;
    double sign[JOINTS], wanted[JOINTS], D[JOINTS];
    int pushed[JOINTS], changed = 0;
    for (int j = 0; j < JOINTS; j++) {
        double over = fabs(q[3 + j]) - limit, z = over / 0.001;
        sign[j] = over > 0 ? (q[3 + j] < 0 ? 1 : -1) : 0;
        double d = least + (most - least) * (z >= 1 ? 1 : z <= 0.5 ? 2 * z * z
                                                                   : 1 - 2 * (1 - z) * (1 - z));
        wanted[j] = d * over / (most * most * time * time) - 2 / (most * time) * sign[j] * v[3 + j];
        D[j] = d / (1 - d) / INVERSE_WEIGHT[j];
        pushed[j] = sign[j] != 0 && sign[j] * a[3 + j] < wanted[j];
        changed |= pushed[j];
    }
    for (int round = 0; changed && round < 6; round++) {
        double A[N][N], g[N];
        memcpy(A, M, sizeof A), memcpy(g, f, sizeof g);
        for (int j = 0; j < JOINTS; j++)
            if (pushed[j]) A[3 + j][3 + j] += D[j], g[3 + j] += sign[j] * D[j] * wanted[j];
        solve(A, g, a);
        changed = 0;
        for (int j = 0; j < JOINTS; j++) {
            int now = sign[j] != 0 && sign[j] * a[3 + j] < wanted[j];
            changed |= now != pushed[j], pushed[j] = now;
        }
    }
}

static void step(const Rod *rod, double *q, double *v, const double *u) {
    static const double AT[4] = {0, 0.5, 0.5, 1}, SHARE[4] = {1, 2, 2, 1};
    double V[N], a[N] = {0}, Q[N], dq[N] = {0}, dv[N] = {0};
    memcpy(V, v, sizeof V);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < N; i++) {
            Q[i] = q[i] + AT[k] * H * V[i]; /* with the velocity of the stage before */
            V[i] = v[i] + AT[k] * H * a[i];
        }
        acceleration(rod, Q, V, u, a);
        for (int i = 0; i < N; i++) dq[i] += SHARE[k] * V[i], dv[i] += SHARE[k] * a[i];
    }
    for (int i = 0; i < N; i++) q[i] += H / 6 * dq[i], v[i] += H / 6 * dv[i];
}

/* The return of `steps` steps of the policy u = clip(W (observation, 1)), and in `squares` the sums
   of squared observations. */
double play(const Rod *rod, const double *W, double *q, double *v, int steps, double *squares) {
    double total = 0;
    for (int t = 0; t < steps; t++) {
        double o[9] = {q[2], q[3], q[4], v[0], v[1], v[2], v[3], v[4], 1}, u[JOINTS] = {0};
        for (int i = 0; i < 8; i++) squares[i] += o[i] * o[i];
        for (int j = 0; j < JOINTS; j++) {
            for (int i = 0; i < 9; i++) u[j] += W[9 * j + i] * o[i];
            u[j] = fmin(fmax(u[j], -1), 1);
        }
        double x = q[0];
        for (int k = 0; k < 4; k++) step(rod, q, v, u);
        total += (q[0] - x) / (4 * H) - 1e-4 * (u[0] * u[0] + u[1] * u[1]);
    }
    return total;
}

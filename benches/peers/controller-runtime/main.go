// The sample controller on controller-runtime: a field index maps a Service to the AddressableServices that name it.
// Run as `bench-controller-runtime tuned`, it drops managedFields before caching and ignores updates that do not change
// the generation, as the library's documentation advises. K_THREADS_PER_CONTROLLER is the number of concurrent
// reconciles.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

const byService = ".spec.serviceName"

type reconciler struct {
	client.Client
}

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	tuned := len(os.Args) > 1 && os.Args[1] == "tuned"
	workers, err := strconv.Atoi(os.Getenv("K_THREADS_PER_CONTROLLER"))
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit
	ctx := ctrl.SetupSignalHandler()
	mgr, err := ctrl.NewManager(config, options(tuned))
	if err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &AddressableService{}, byService, serviceName); err != nil {
		return err
	}
	if err := watch(mgr, workers, tuned); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func options(tuned bool) ctrl.Options {
	scheme := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme) // it always succeeds
	scheme.AddKnownTypes(groupVersion, &AddressableService{}, &AddressableServiceList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	options := ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}}
	if tuned {
		options.Cache.DefaultTransform = cache.TransformStripManagedFields()
	}
	return options
}

func watch(mgr ctrl.Manager, workers int, tuned bool) error {
	r := &reconciler{mgr.GetClient()}
	var own []builder.ForOption
	if tuned {
		own = append(own, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&AddressableService{}, own...).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(r.referrers)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

func serviceName(object client.Object) []string {
	return []string{object.(*AddressableService).Spec.ServiceName}
}

// referrers returns a request for each AddressableService that names the Service.
func (r *reconciler) referrers(ctx context.Context, service client.Object) []ctrl.Request {
	var found AddressableServiceList
	err := r.List(ctx, &found, client.InNamespace(service.GetNamespace()), client.MatchingFields{byService: service.GetName()})
	if err != nil {
		return nil
	}
	requests := make([]ctrl.Request, len(found.Items))
	for i := range found.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&found.Items[i])
	}
	return requests
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object AddressableService
	if err := r.Get(ctx, request.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var service corev1.Service
	name := types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.ServiceName}
	err := r.Get(ctx, name, &service)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	before := object.DeepCopy()
	object.Status.mark(object.Generation, name, !errors.IsNotFound(err))
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.Status().Update(ctx, &object)
}

func (s *AddressableServiceStatus) mark(generation int64, name types.NamespacedName, found bool) {
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "ServiceUnavailable"}
	ready.Message = fmt.Sprintf("Service %q wasn't found.", name.Name)
	s.Address = nil
	if found {
		ready = metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue}
		s.Address = &Address{URL: fmt.Sprintf("http://%s.%s.svc.cluster.local", name.Name, name.Namespace)}
	}
	s.ObservedGeneration = generation
	meta.SetStatusCondition(&s.Conditions, ready)
}

package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "samples.knative.dev", Version: "v1alpha1"}

type AddressableService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AddressableServiceSpec   `json:"spec"`
	Status AddressableServiceStatus `json:"status,omitempty"`
}

type AddressableServiceSpec struct {
	ServiceName string `json:"serviceName"`
}

type AddressableServiceStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	Address            *Address           `json:"address,omitempty"`
}

type Address struct {
	URL string `json:"url"`
}

type AddressableServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressableService `json:"items"`
}

func (in *AddressableService) DeepCopy() *AddressableService {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(in.Status.Conditions))
		copy(out.Status.Conditions, in.Status.Conditions)
	}
	if in.Status.Address != nil {
		address := *in.Status.Address
		out.Status.Address = &address
	}
	return &out
}

func (in *AddressableService) DeepCopyObject() runtime.Object { return in.DeepCopy() }

func (in *AddressableServiceList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = make([]AddressableService, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopy()
	}
	return &out
}
